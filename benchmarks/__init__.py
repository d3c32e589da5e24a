"""Measurements side by side with peers and with the machine's limit."""

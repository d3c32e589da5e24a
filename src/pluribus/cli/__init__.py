"""Placeholder until its pieces stand."""

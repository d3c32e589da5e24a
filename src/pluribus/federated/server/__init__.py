"""Server rules: how a server turns a round of client updates into the next model."""

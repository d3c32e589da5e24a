"""pluribus: many contributions become one result."""

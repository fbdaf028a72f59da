"""Of AITER."""

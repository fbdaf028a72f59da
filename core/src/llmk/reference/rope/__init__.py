"""Rotary position embeddings in plain torch: the rotation, and the ways to scale its frequencies."""

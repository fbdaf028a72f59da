"""Choosing tokens in plain torch."""

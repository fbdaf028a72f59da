"""Choosing tokens and their log-probabilities."""

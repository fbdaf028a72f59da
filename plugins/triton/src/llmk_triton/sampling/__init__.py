"""Sampling, and log-probabilities."""

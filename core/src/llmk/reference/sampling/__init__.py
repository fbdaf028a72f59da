"""Sampling in plain torch."""

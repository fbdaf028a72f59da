"""Reasoning dialects, one module each."""

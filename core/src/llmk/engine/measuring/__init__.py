"""Measures kernels: tuning, and comparing them with their shadows."""

"""Carries out a step on a device: batch state, cache tensors, weights, warm-up."""

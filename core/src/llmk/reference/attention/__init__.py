"""Attention in plain torch: contiguous, paged, and row-invariant."""

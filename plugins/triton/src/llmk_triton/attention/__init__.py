"""Paged attention, and the Q/K norms, RoPE and K/V write before it."""

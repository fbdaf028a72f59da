"""Paged attention, and what happens to queries, keys and values before it."""

"""Ops on the persistent batch state, and token embeddings."""

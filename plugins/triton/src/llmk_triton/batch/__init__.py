"""The batch state and token embeddings."""

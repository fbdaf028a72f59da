"""Embeddings for llmk, dense and sparse.

``llmk_embeddings.specs`` is the plugin module.
"""

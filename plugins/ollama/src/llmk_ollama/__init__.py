"""Ollama's API, over llmk's completions and embeddings.

``llmk_ollama.specs`` is the plugin module.
"""

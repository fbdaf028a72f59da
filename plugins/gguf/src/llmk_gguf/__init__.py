"""GGUF files, served as they are.

``llmk_gguf.specs`` is the plugin module.
"""

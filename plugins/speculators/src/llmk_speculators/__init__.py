"""Speculators for llmk.

``llmk_speculators.specs`` is the plugin module.
"""

"""Reasoning and tool-call dialects for llmk, as incremental state machines.

``llmk_parsers.specs`` is the plugin module.
"""

"""Grammars for llmk: regular expressions, choices and JSON schemas, by llguidance.

``llmk_grammar.specs`` is the plugin module.
"""

"""8-bit integer weights for llmk.

``llmk_int8.specs`` is the plugin module.
"""

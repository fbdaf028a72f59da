"""Quantized weights for llmk.

``llmk_quantization.specs`` is the plugin module.
"""

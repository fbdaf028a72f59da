"""Anthropic's Messages API, over llmk's chat completions.

``llmk_anthropic.specs`` is the plugin module.
"""

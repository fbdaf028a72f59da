"""Scheduling policies for llmk.

``llmk_policies.specs`` is the plugin module.
"""

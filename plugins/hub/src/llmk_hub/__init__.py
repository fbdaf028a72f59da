"""Gets models that are named (``org/name``) from the Hugging Face hub, or a server that speaks its protocol.

``llmk_hub.specs`` is the plugin module.
"""

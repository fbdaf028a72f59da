"""Reasoning of gpt-oss: the channel ``analysis`` of the harmony format."""

from __future__ import annotations

from llmk_parsers.channels import ChannelReasoning
from llmk_parsers.harmony import Harmony

EXAMPLES = (
    "<|channel|>analysis<|message|>Twelve plus thirty.<|end|><|start|>assistant<|channel|>final<|message|>42<|return|>",
    "<|channel|>analysis<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.find "
    '<|constrain|>json<|message|>{"q": "x"}<|call|>',
    "<|channel|>final<|message|>Paris.",
)
"""Answers as models write them, for the conformance kit."""


class OpenAIGptOss(Harmony, ChannelReasoning):
    """Reasoning and content of harmony; calls of functions are left to the tool parser."""

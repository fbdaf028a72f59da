"""Reasoning of gpt-oss: the channel ``analysis`` of the harmony format."""

from __future__ import annotations

from llmk_parsers.channels import ChannelReasoning
from llmk_parsers.harmony import Harmony


class OpenAIGptOss(Harmony, ChannelReasoning):
    """Reasoning and content of harmony; calls of functions are left to the tool parser."""

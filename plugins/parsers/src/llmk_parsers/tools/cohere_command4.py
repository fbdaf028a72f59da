"""Tool calls of Cohere's Command A Plus and others, which have other markers around text than Command A."""

from __future__ import annotations

from llmk_parsers.tools import cohere_command3
from llmk_parsers.tools.cohere_command3 import CohereCommand

__all__ = ["EXAMPLES", "WRITER", "CohereCommand"]

WRITER = cohere_command3.WRITER

EXAMPLES = (*cohere_command3.EXAMPLES[1:], "<|START_TEXT|>Hello.<|END_TEXT|>")

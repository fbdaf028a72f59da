"""Tool calls in channels, and those whose reasoning is written in the same way."""

from __future__ import annotations

from llmk.api import ParserQuery, Verdict
from llmk_parsers.claims import mentions
from llmk_parsers.spec_of import writing


def _openai(query: ParserQuery) -> Verdict:
    return mentions(query, "<|channel|>", "<|message|>", "commentary")


def _plamo3(query: ParserQuery) -> Verdict:
    return mentions(query, "<|plamo:")


TOOL_PARSERS = [
    writing("openai", "OpenAI", _openai, "messages of the harmony format", special_tokens=True),
    writing("plamo3", "Plamo3", _plamo3, "a block of requests", special_tokens=True),
]

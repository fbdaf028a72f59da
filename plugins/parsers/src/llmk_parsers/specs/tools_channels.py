"""Tool calls in channels, and those whose reasoning is written in the same way."""

from __future__ import annotations

from functools import partial

from llmk.api import ParserQuery, Verdict
from llmk_parsers.claims import is_model, mentions, only_by_name
from llmk_parsers.spec_of import dialect, writing


def _openai(query: ParserQuery) -> Verdict:
    return mentions(query, "<|channel|>", "<|message|>", "commentary")


def _plamo3(query: ParserQuery) -> Verdict:
    return mentions(query, "<|plamo:")


def _muse(query: ParserQuery) -> Verdict:
    return mentions(query, "<atem:function_calls>")


def _k2_horizon(query: ParserQuery) -> Verdict:
    return mentions(query, "<ifm|tool_call>")


def _granite_thinking(query: ParserQuery) -> Verdict:
    return mentions(query, "<think>", "<function=") & is_model(query, "granite")


TOOL_PARSERS = [
    dialect(
        "tools",
        "granite_thinking_parser",
        "Qwen3Coder",
        _granite_thinking,
        "the same as qwen3_coder, for Granite 4 with think tags",
        module="qwen3_coder",
        writer="llmk_parsers.tools.qwen3_coder:WRITER",
        score=1,
    ),
    writing("k2_horizon", "K2Horizon", _k2_horizon, "pairs of keys and values, or JSON", special_tokens=True),
    writing("muse", "Muse", _muse, "messages with <atem:invoke> tags", special_tokens=True),
    dialect(
        "tools",
        "muse_glimmer",
        "Muse",
        partial(only_by_name, like="muse"),
        "the same as muse",
        module="muse",
        writer="llmk_parsers.tools.muse:WRITER",
        special_tokens=True,
    ),
    writing("openai", "OpenAI", _openai, "messages of the harmony format", special_tokens=True),
    writing("plamo3", "Plamo3", _plamo3, "a block of requests", special_tokens=True),
]

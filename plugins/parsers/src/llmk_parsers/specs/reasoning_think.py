"""Reasoning between ``<think>`` and ``</think>``."""

from __future__ import annotations

from llmk.api import ParserQuery, Verdict
from llmk_parsers.claims import lacks, mentions
from llmk_parsers.spec_of import dialect

_SWITCH = "enable_thinking"
THINK = ("<think>", "</think>")


def _qwen3(query: ParserQuery) -> Verdict:
    return mentions(query, "<think>", _SWITCH)


def _deepseek_r1(query: ParserQuery) -> Verdict:
    return mentions(query, "<think>") & lacks(query, _SWITCH)


REASONING_PARSERS = [
    dialect("reasoning", "qwen3", "Qwen3", _qwen3, "think tags, with the option enable_thinking", markers=THINK),
    dialect("reasoning", "deepseek_r1", "DeepSeekR1", _deepseek_r1, "think tags that are always there", markers=THINK),
]

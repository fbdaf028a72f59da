"""Tool calls in channels, and those whose reasoning is written in the same way."""

from __future__ import annotations

from functools import partial

from llmk.api import OK, ParserQuery, Verdict
from llmk_parsers.claims import is_model, lacks, mentions, model_type, only_by_name, template_of
from llmk_parsers.spec_of import dialect, writing


def _openai(query: ParserQuery) -> Verdict:
    return mentions(query, "<|channel|>", "<|message|>", "commentary") & lacks(query, "<rfl:parameter")


def _beam(query: ParserQuery) -> Verdict:
    return mentions(query, "<rfl:parameter")


def _inkling(query: ParserQuery) -> Verdict:
    return mentions(query, "<|content_invoke_tool_json|>")


def _kimi_k3(query: ParserQuery) -> Verdict:
    """Checkpoints write prompts with code of their own, so they may lack a template."""
    if not template_of(query) and model_type(query) == "kimi_k3":
        return OK
    return mentions(query, "<|open|>", "<|sep|>", "tool", "call", "index")


def _solar_open2(query: ParserQuery) -> Verdict:
    return mentions(query, "<|tool_call:start|>")


def _plamo3(query: ParserQuery) -> Verdict:
    return mentions(query, "<|plamo:")


def _muse(query: ParserQuery) -> Verdict:
    return mentions(query, "<atem:function_calls>")


def _k2_horizon(query: ParserQuery) -> Verdict:
    return mentions(query, "<ifm|tool_call>")


def _granite_thinking(query: ParserQuery) -> Verdict:
    return mentions(query, "<think>", "<function=") & is_model(query, "granite")


TOOL_PARSERS = [
    writing("beam", "Beam", _beam, "messages with <rfl:parameter> tags", special_tokens=True),
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
    writing("inkling", "Inkling", _inkling, "messages with a name and args as JSON", special_tokens=True),
    writing("kimi_k3", "KimiK3", _kimi_k3, "XTML elements, with types of arguments", special_tokens=True),
    writing("solar_open2", "SolarOpen2", _solar_open2, "names, and arguments between markers", special_tokens=True),
    writing("k2_horizon", "k2_horizon", _k2_horizon, "pairs of keys and values, or JSON", special_tokens=True),
    writing("muse", "Muse", _muse, "messages with <atem:invoke> tags", special_tokens=True),
    *(
        dialect(
            "tools",
            name,
            "Muse",
            partial(only_by_name, like="muse"),
            "the same as muse",
            module="muse",
            writer="llmk_parsers.tools.muse:WRITER",
            special_tokens=True,
        )
        for name in ("muse_glimmer", "musespark1x")
    ),
    writing("openai", "OpenAI", _openai, "messages of the harmony format", special_tokens=True),
    writing("plamo3", "Plamo3", _plamo3, "a block of requests", special_tokens=True),
]

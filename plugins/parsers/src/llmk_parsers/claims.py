"""Detects the dialect of a checkpoint from its chat template."""

from __future__ import annotations

import re

from llmk.api import OK, ParserQuery, Verdict, no

_SWITCH = "enable_thinking"
_NAMED_ARGUMENTS = re.compile(r"\bname\b.*\barguments\b|\barguments\b.*\bname\b", re.DOTALL)


def qwen3(query: ParserQuery) -> Verdict:
    """Think tags that ``enable_thinking`` turns on and off."""
    return _mentions(query, "<think>", _SWITCH)


def deepseek_r1(query: ParserQuery) -> Verdict:
    """Think tags without ``enable_thinking``."""
    return _mentions(query, "<think>") & _lacks(query, _SWITCH)


def hermes(query: ParserQuery) -> Verdict:
    """Tool-call tags around JSON, not around XML as in the dialects of Qwen3-Coder and GLM."""
    verdict = _mentions(query, "<tool_call>") & _lacks(query, "<function=", "<arg_key>")
    if not _NAMED_ARGUMENTS.search(_template(query)):
        verdict &= no("chat_template", wanted="a call's name and arguments as JSON", found="none")
    return verdict


def llama3_json(query: ParserQuery) -> Verdict:
    """The Llama 3 header tokens, and calls with ``parameters`` as bare JSON."""
    return _mentions(query, "<|start_header_id|>", "ipython", "parameters") & _lacks(query, "<tool_call>", "pythonic")


def _template(query: ParserQuery) -> str:
    return query.checkpoint.chat_template or ""


def _mentions(query: ParserQuery, *texts: str) -> Verdict:
    template = _template(query)
    if not template:
        return no("chat_template", wanted=f"one that mentions {texts[0]}", found="no chat template")
    missing = [text for text in texts if text not in template]
    return no("chat_template", wanted=f"mentions {missing[0]}", found="doesn't") if missing else OK


def _lacks(query: ParserQuery, *texts: str) -> Verdict:
    present = [text for text in texts if text in _template(query)]
    return no("chat_template", wanted=f"none that mentions {present[0]}", found="does") if present else OK

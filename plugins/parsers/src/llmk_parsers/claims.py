"""What claims are made of: they recognise a checkpoint's dialect by its chat template, its config and its tokenizer."""

from __future__ import annotations

import re
from typing import Any

from llmk.api import OK, ParserQuery, Verdict, no


def template_of(query: ParserQuery) -> str:
    """The chat template; empty if the checkpoint has none."""
    return query.checkpoint.chat_template or ""


def mentions(query: ParserQuery, *texts: str) -> Verdict:
    """The chat template has all of ``texts``."""
    template = template_of(query)
    if not template:
        return no("chat_template", wanted=f"one that mentions {texts[0]}", found="no chat template")
    missing = [text for text in texts if text not in template]
    return no("chat_template", wanted=f"mentions {missing[0]}", found="doesn't") if missing else OK


def lacks(query: ParserQuery, *texts: str) -> Verdict:
    """The chat template has none of ``texts``."""
    present = [text for text in texts if text in template_of(query)]
    return no("chat_template", wanted=f"none that mentions {present[0]}", found="does") if present else OK


def option(query: ParserQuery, name: str) -> Verdict:
    """The chat template reads the variable ``name``."""
    if re.search(rf"(?<![\w.'\"<-]){re.escape(name)}(?![\w-])", template_of(query)):
        return OK
    return no("chat_template", wanted=f"a template that reads {name}", found="doesn't")


def is_model(query: ParserQuery, *names: str) -> Verdict:
    """The config's ``model_type``, in lower case, starts with one of ``names``."""
    found = model_type(query)
    if found.startswith(names):
        return OK
    return no("model_type", wanted=" or ".join(names), found=found or "none")


def is_other_model(query: ParserQuery, *names: str) -> Verdict:
    """The config's ``model_type``, in lower case, starts with none of ``names``."""
    found = model_type(query)
    return no("model_type", wanted=f"none of {', '.join(names)}", found=found) if found.startswith(names) else OK


def model_type(query: ParserQuery) -> str:
    """The config's ``model_type`` in lower case."""
    found: Any = query.checkpoint.config.get("model_type")
    return found.lower() if isinstance(found, str) else ""


def only_by_name(query: ParserQuery, *, like: str) -> Verdict:
    """No checkpoint: the parser is a name that users know for what ``like`` does, or a choice of theirs."""
    return mentions(query, "") & no("by_name", wanted="its name in [select]", found="detection", hint=f"see {like}")

"""The grammar of a chat's answer: reasoning, and then calls of tools, text that follows a grammar, or free text.

Grammars of requests are about the content alone. Where the model may reason first, or where calls are enforced too,
they become rules of one grammar, in llguidance's variant of Lark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from llmk.api import CallWriter, RequestError
from llmk.engine.wire.grammar_params import PARAM, GrammarParams

Marker = Callable[[str], str]
"""The Lark term of a marker's text, which may be a special token."""

_START = re.compile(r"^start\b", re.MULTILINE)
_DIRECTIVE = re.compile(r"^%llguidance\b[^\n]*\n?", re.MULTILINE)
_SPACE = r"llmk_space: /[ \r\n\t]{0,8}/"
_TEXT = r"LLMK_TEXT: /(.|\n)*/"


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Whether an answer has reasoning before what is enforced: it is ``"open"`` already, it ``"may"`` come, or there is
    ``"none"``. ``markers`` open and close it."""

    state: Literal["open", "may", "none"] = "none"
    markers: tuple[str, str] = ("", "")

    @classmethod
    def of(cls, markers: tuple[str, str], prompt_tail: str, thinking: bool | None) -> Reasoning:
        """By the end of the prompt and the request's switch."""
        tail = prompt_tail.rstrip()
        if not all(markers) or tail.endswith(markers[1]):
            return cls()
        if tail.endswith(markers[0]):
            return cls("open", markers)
        return cls() if thinking is False else cls("may", markers)


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls that the answer must be (``must``), may be instead of what else it must match, or may have in free text.

    ``tools`` are OpenAI function objects; ``many``: more than one call.
    """

    writer: CallWriter
    tools: Sequence[Mapping[str, Any]]
    many: bool
    must: bool


def compose(content: GrammarParams | None, calls: Calls | None, reasoning: Reasoning, marker: Marker) -> GrammarParams:
    """The grammar of an answer of which at least ``content`` or ``calls`` is constrained."""
    if calls is None and reasoning.state == "none" and content is not None:
        return content
    rules, body = [_TEXT], []
    if content is not None:
        rules.append(_content(content))
        body.append("llmk_content")
    if calls is not None:
        free = content is None and not calls.must
        rules += _calls(calls, marker, free=free)
        body.append("llmk_calls* LLMK_TEXT" if free else "llmk_calls")
    # White space before JSON and calls says nothing; what else the content is, the client compares.
    spaced = content is None or content.kind == "json"
    start = f"start: {_prefix(reasoning, marker, rules, spaced=spaced)}({' | '.join(body)})"
    return GrammarParams(lark="\n".join([*_directives(rules), start, *rules]))


def _prefix(reasoning: Reasoning, marker: Marker, rules: list[str], *, spaced: bool) -> str:
    """The terms of the reasoning, whose rules are added, and of white space where the content is ``spaced``."""
    if reasoning.state == "none":
        return ""
    opening, closing = map(marker, reasoning.markers)
    space = "llmk_space " if spaced else ""
    rules += [*([_SPACE] if spaced else []), _until("llmk_thought", closing)]
    return f"llmk_thought {space}" if reasoning.state == "open" else f"({opening} llmk_thought)? {space}"


def _until(name: str, term: str) -> str:
    """A rule of free text up to a marker."""
    return f"{name}: LLMK_TEXT? {term}" if term.startswith("<[") else f"{name}[lazy]: LLMK_TEXT {term}"


def _calls(calls: Calls, marker: Marker, *, free: bool) -> list[str]:
    """Rules of calls; in ``free`` text, each comes after any text, up to what starts a call."""
    trigger = calls.writer.trigger

    def found(text: str) -> str:
        return "llmk_trigger" if text == trigger else marker(text)

    written = calls.writer.grammar(calls.tools, many=calls.many and not free, marker=found if free else marker)
    rules = [_START.sub("llmk_calls", written, count=1)]
    return [*rules, _until("llmk_trigger", marker(trigger))] if free else rules


def _content(grammar: GrammarParams) -> str:
    """A rule for text that matches a grammar of a request."""
    if grammar.kind == "lark":
        return _START.sub("llmk_content", grammar.text.replace(f"\n{_TEXT}\n", "\n", 1), count=1)
    if grammar.kind == "choice":
        terms = " | ".join(json.dumps(text) for text in json.loads(grammar.text))
    elif grammar.kind == "regex":
        terms = f"/{_in_slashes(grammar.text)}/" if grammar.text else '""'
    else:
        schema = json.loads(grammar.text)
        terms = f"%json {json.dumps({} if schema is True else schema)}"
    return f"llmk_content: {terms}"


def _in_slashes(regex: str) -> str:
    """A regular expression as it is written between slashes, where line breaks and slashes are escaped. It matches the
    whole content, so anchors at its ends say nothing."""
    escapes = {"/": r"\/", "\n": r"\n", "\r": r"\r"}
    regex = regex.removeprefix("^")
    body = regex.removesuffix("$")
    if (len(body) - len(body.rstrip("\\"))) % 2:
        body = regex  # the dollar is escaped
    return re.sub(r"\\.|[/\n\r]", lambda found: escapes.get(found[0], found[0]), body, flags=re.DOTALL)


def _directives(rules: list[str]) -> list[str]:
    """Takes options, which come first in a grammar, out of the rules."""
    found = [match[0].strip() for rule in rules for match in _DIRECTIVE.finditer(rule)]
    rules[:] = [_DIRECTIVE.sub("", rule) for rule in rules]
    return found


def _text(text: str) -> str:
    return json.dumps(text) if text else ""


def as_grammar(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of :class:`GrammarParams` for a grammar of a request, whose structural tags are written as a grammar.

    Raises :class:`~llmk.api.RequestError` for tags of another form than vLLM's.
    """
    if "structural_tag" not in given:
        return dict(given)
    tags = given["structural_tag"]
    try:
        lark = structural_tags(json.loads(tags) if isinstance(tags, str) else tags)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        form = "{'structures': [{'begin', 'schema', 'end'}], 'triggers': […]}"
        what = f"{PARAM}: structural tags have the form {form}: {type(error).__name__}: {error}"
        raise RequestError(what, param=PARAM) from None
    return {**{name: value for name, value in given.items() if name != "structural_tag"}, "lark": lark}


def structural_tags(tags: Mapping[str, Any]) -> str:
    """vLLM's ``structural_tag`` as a grammar: free text, in which each trigger is followed by the rest of a structure's
    opening text, an instance of its ``schema``, and its ``end``.

    Raises ValueError for a structure that no trigger starts, and KeyError or TypeError for another form.
    """
    rules, names = [_TEXT], []
    for number, structure in enumerate(tags["structures"]):
        opening, end, schema = structure["begin"], structure["end"], structure.get("schema", {})
        trigger = next((text for text in tags["triggers"] if text and opening.startswith(text)), None)
        if trigger is None:
            raise ValueError(f"no trigger starts the structure {opening!r}")
        rest = opening[len(trigger) :]
        terms = f"{_text(rest)} %json {json.dumps(schema)} {_text(end)}"
        names.append(f"tag_{number}")
        rules += [_until(f"trigger_{number}", json.dumps(trigger)), f"tag_{number}: trigger_{number} {terms}"]
    return "\n".join([f"start: ({' | '.join(names)})* LLMK_TEXT", *rules])

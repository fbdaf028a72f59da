"""Cases of requests: a parser depends on its own request alone, takes any options and tools, and changes none."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from llmk.api import ParserContext
from llmk_testing import parsers
from llmk_testing.case import Case, Skip
from llmk_testing.costs import check_forgotten
from llmk_testing.odd_texts import ODD, ODDS
from llmk_testing.parsers import PLAIN, Answer, Factory
from llmk_testing.settings import leaving_settings

TOOL = {"name": "get_weather", "description": "", "parameters": {"type": "object", "properties": {"city": {}}}}
CONTEXTS = {
    "by default": ParserContext(),
    "with thinking on": ParserContext(thinking=True, template_options={"enable_thinking": True}),
    "with thinking off": ParserContext(thinking=False, template_options={"enable_thinking": False}),
    "with tools": ParserContext(tools=(TOOL,), prompt_tail="<|im_start|>assistant\n"),
}
_VALUE = re.compile(r"(?<=[\s\"'>])[A-Za-zÀ-ÿ]{3,}(?=[\s\"'<.,!?]|$)")
"""A word in a text, as far as it can be recognized in an unknown dialect."""
_OPTIONS: tuple[dict[str, Any], ...] = (
    {"unheard_of": 1},
    {"enable_thinking": None, "thinking": None, "reasoning_effort": None},
    {"enable_thinking": "no", "thinking": 0, "reasoning_effort": "high", "tools": [], "documents": [{"a": "b"}]},
)
_PROPERTIES: tuple[Any, ...] = (
    *({}, True, {"type": ["string", "null"]}, {"type": "unheard-of"}, {"enum": []}, {"$ref": "#/$defs/nowhere"}),
    *({"anyOf": [True, {"type": "null"}]}, {"type": "array", "items": True}, {"description": None, "default": {}}),
)
_TOOLS: tuple[dict[str, Any], ...] = (
    {"name": "get_weather"},
    {
        "name": "get_weather",
        "description": "D",
        "strict": True,
        "parameters": {
            "type": "object",
            "title": "T",
            "description": "D",
            "properties": {"city": {"$ref": "#/$defs/city", "description": "D", "default": "Oslo"}},
            "$defs": {"city": {"type": "string", "title": "T"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
    {"name": "get_weather", "description": None, "parameters": None, "strict": True},
    {"name": "get_weather", "parameters": {"type": "object", "properties": None, "required": None}},
    *({"name": "get_weather", "parameters": {"properties": {"city": each, "x": each}}} for each in _PROPERTIES),
)


def request_cases(
    made: Callable[[ParserContext], Factory], texts: Callable[[], Sequence[str]], case: Callable[..., Case]
) -> Iterator[Case]:
    """The cases of one parser; ``texts`` are its examples'."""
    for name, context in CONTEXTS.items():
        yield case(f"{name}, odd characters come back as they are", check_odd, made(context))
    yield case("nothing is found in an empty answer", check_empty, made)
    yield case("any options and tools of requests are taken, and stay as they are", check_data, made, texts)
    yield case("what the whole process shares stays as it is", check_settings, made, texts)
    yield case("a parser depends on its own request alone", check_own, made, texts)
    yield case("nothing is kept of requests that are gone", check_gone, made, texts)


def check_odd(make: Factory) -> None:
    """What libraries normalize, unescape, split or strip is content or reasoning to the character."""
    for text in (ODD, *(f"{PLAIN}{odd} x" for odd in ODDS)):
        answer = parsers.check_chunking(make, text, rounds=1)
        assert any(text in whole for whole in (answer.content, answer.reasoning)), f"{text!r} comes back as {answer}"


def check_empty(made: Callable[[ParserContext], Factory]) -> None:
    """Without a piece, and with an empty one."""
    for context in CONTEXTS.values():
        for chunks in ([], [""], ["", ""]):
            answer = parsers.parse(made(context), chunks)
            assert answer == Answer(), f"{answer} is found in no text"


def check_data(made: Callable[[ParserContext], Factory], texts: Callable[[], Sequence[str]]) -> str:
    """The choices of a request share its data, which parsers read."""
    contexts = [ParserContext(template_options=options) for options in _OPTIONS]
    contexts += [ParserContext(tools=[tool]) for tool in _TOOLS]
    contexts += [replace(context, tools=list(context.tools)) for context in CONTEXTS.values()]
    for before in contexts:
        context = deepcopy(before)
        for text in (*_some(texts), PLAIN):
            try:
                parsers.parse(made(context), [text])
            except AssertionError:
                raise
            except Exception as error:
                raise AssertionError(f"raised {error!r} for {context} and {text!r}") from error
        assert context == before, f"the request's data was changed from {before} to {context}"
    return f"{len(contexts)} requests"


def check_own(made: Callable[[ParserContext], Factory], texts: Callable[[], Sequence[str]]) -> str:
    """The same answers, no matter which requests come before, and which run at the same time."""
    asked = [(context, text) for context in CONTEXTS.values() for text in (*_some(texts), PLAIN)]
    expected = [parsers.parse(made(context), [*text]) for context, text in asked]
    again = [parsers.parse(made(context), [*text]) for context, text in asked[::-1]][::-1]
    for (_, text), first, then in zip(asked, expected, again, strict=True):
        assert first == then, f"{text!r} comes back as {first}, and as {then} behind other requests"
    for one, other in zip(_together(made, asked), expected, strict=True):
        assert one == other, f"{one} comes back with other requests at the same time, and alone {other}"
    return f"{len(asked)} requests"


def check_settings(made: Callable[[ParserContext], Factory], texts: Callable[[], Sequence[str]]) -> None:
    """Such as limits of recursion and of numbers, of answers that are cut, deep, and have large numbers, too."""
    for text in (*_some(texts), PLAIN, "[" * 3000, "1" * 6000):
        for end in {len(text) // 2, len(text)}:
            with leaving_settings():
                parsers.parse(made(ParserContext()), [text[:end]])


def check_gone(made: Callable[[ParserContext], Factory], texts: Callable[[], Sequence[str]]) -> str:
    """Requests with examples, whose words are others each time, and with plain text; nothing refers to their parsers
    any more."""
    some, contexts = [*_some(texts), PLAIN], [*CONTEXTS.values()]

    def serve(number: int) -> None:
        text = _renamed(some[number % len(some)], number)
        parsers.parse(made(contexts[number // len(some) % len(contexts)]), [text[:7], text[7:], f" {number}" * 20])

    return check_forgotten(serve, "requests")


def _renamed(text: str, number: int) -> str:
    """The text with other values: words are followed by a number, but for those in markers."""
    return _VALUE.sub(lambda found: f"{found[0]}{f'{number:06}' * 5}", text)


def _together(made: Callable[[ParserContext], Factory], asked: Sequence[tuple[ParserContext, str]]) -> list[Answer]:
    running = [made(context)() for context, _ in asked]
    events: list[list[Any]] = [[] for _ in asked]
    for at in range(max(len(text) for _, text in asked)):
        for parser, (_, text), found in zip(running, asked, events, strict=True):
            found += parser.push(text[at : at + 1])
    return [parsers.fold([*found, *parser.finish()]) for parser, found in zip(running, events, strict=True)]


def _some(texts: Callable[[], Sequence[str]]) -> Sequence[str]:
    """The first examples, if there are any."""
    try:
        return texts()[:4]
    except Skip:
        return ()

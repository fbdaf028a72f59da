"""What a route is tried on: requests with what they mean, and responses as clients of the API must get them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llmk.api import (
    AnswerDelta,
    AnswerHead,
    Frame,
    ReasoningDelta,
    ServedModelInfo,
    TextDelta,
    TokenCounts,
    TranslatedRequest,
)
from llmk.api.http.calls import CompleteCall, CompleteCalls

MESSAGE = "the reason"
"""The message of the errors that a route is asked to put in its format."""
ERROR = {"message": MESSAGE, "type": "t", "param": "the_field", "code": "c", "request_id": "0" * 32}
"""Such an error."""
MODEL = ServedModelInfo(
    name="org/model",
    adapters=("adapter",),
    created=1_700_000_000,
    version="1.0",
    max_model_len=4096,
    chat_template="{{ messages }}",
    capabilities=("completion", "tools"),
    config={"model_type": "toy", "hidden_size": 64, "dtype": "bfloat16"},
    num_parameters=7_300_000_000,
    num_bytes=14_600_000_000,
)
"""The model that routes of examples describe."""


@dataclass(frozen=True, slots=True)
class RouteExample:
    """A request. ``body`` is valid, unless ``refused`` names the field for which it must be refused; without ``means``,
    what it is translated to is not compared. The ``options`` of ``means`` are the route's own and not compared.

    ``results`` are for routes whose requests generate no text: what llmk's own route returns (``{}`` for ``"info"``),
    and the response of this one to it, for :data:`MODEL`.
    """

    body: Any
    means: TranslatedRequest | None = None
    refused: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    results: Sequence[tuple[Mapping[str, Any], Any]] = ()


@dataclass(frozen=True, slots=True)
class Spoken:
    """What the engine said to one request: deltas, each with the tokens so far, and the tokens at the end."""

    head: AnswerHead
    deltas: Sequence[tuple[AnswerDelta, TokenCounts]]
    usage: TokenCounts

    @property
    def parts(self) -> Iterator[TextDelta | ReasoningDelta | CompleteCall]:
        """Pieces of texts and of thoughts, and calls, each where it ends. No piece is empty."""
        calls = CompleteCalls()
        for event in (event for delta, _ in self.deltas for event in delta.events):
            part = calls.of(event)
            if isinstance(part, CompleteCall) or (isinstance(part, TextDelta | ReasoningDelta) and part.text):
                yield part

    @property
    def end(self) -> tuple[str, str | int | None]:
        """Why it ended: ``finish_reason`` and ``stop_reason``."""
        last = self.deltas[-1][0]
        return last.finish_reason or "", last.stop_reason


@dataclass(frozen=True, slots=True)
class RouteAnswer:
    """A response: streamed, as all frames in their order, and complete."""

    frames: Sequence[Frame]
    whole: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteExamples:
    """``RouteSpec.examples`` names one.

    ``oracle`` renders a response once more, by the plainest code: from the body of a request and all that was said, at
    once. ``errors`` are :data:`ERROR` in the API's format, by HTTP status. Both, and results, have ``...`` in place of
    each value that differs from run to run, such as a time.
    """

    requests: Sequence[RouteExample]
    oracle: Callable[[Any, Spoken], RouteAnswer] | None = None
    errors: Mapping[int, Frame] = field(default_factory=dict)


def difference(found: Any, expected: Any, where: str = "") -> str:
    """Where plain data differs from what is expected; empty where it does not. ``...`` stands for any value."""
    if expected is ...:
        return ""
    here = where or "it"
    if isinstance(found, Mapping) and isinstance(expected, Mapping):
        if found.keys() != expected.keys():
            return f"{here} has the fields {sorted(found)}, expected {sorted(expected)}"
        pairs = ((found[name], expected[name], f"{where}.{name}".lstrip(".")) for name in expected)
        return next(filter(None, (difference(*pair) for pair in pairs)), "")
    if _is_list(found) and _is_list(expected):
        if len(found) != len(expected):
            return f"{here} has {len(found)} entries, expected {len(expected)}: {found}, expected {expected}"
        entries = enumerate(zip(found, expected, strict=True))
        return next(filter(None, (difference(*pair, f"{where}[{at}]") for at, pair in entries)), "")
    same = found == expected and isinstance(found, bool) == isinstance(expected, bool)
    return "" if same else f"{here} is {found!r}, expected {expected!r}"


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)

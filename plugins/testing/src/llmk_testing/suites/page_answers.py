"""Answers that are streamed: what is said of their tokens, those that break off, and those that the user stops."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from llmk.serve.http.pages import LoadedPage
from llmk_testing.case import Skip
from llmk_testing.opened_page import Opened, opened

REASON = "the reason of the server"
_TURNS = ("first", "second")
_AGAIN = "third"
_LIKELY = -0.001
"""A logarithm of a probability that a page which shows any, or marks those that are known, shows."""
_ODDS: Mapping[str, Mapping[str, Any]] = {
    "of a token that is certain, whose logarithm is 0": {"logprob": 0},
    "of a token, where the list of the most likely is empty": {"tops": "none"},
    "of a token that is not in the list of the most likely": {"tops": "others"},
}


def check_broken(page: LoadedPage) -> None:
    """By an error as an event of the stream, or by a connection that is lost. What was said until then is the same."""
    ended = _streamed(opened(page, text=_TURNS[0], ends="early")).seen["end"]
    found = opened(page, text=_TURNS[0], ends="error", reason=REASON)
    found.check()
    shown = found.seen["end"]
    assert REASON in shown, f"an answer ends with an event that is the error {REASON!r}, which is not shown: {shown!r}"
    lost = opened(page, text=_TURNS[0], ends="lost")
    lost.check()
    assert lost.seen["end"] != ended, f"an answer whose connection is lost is shown as a whole one: {ended!r}"


def check_odds(page: LoadedPage) -> str:
    """A page that shows those of likely tokens differs from one where the server says none."""
    _streamed(opened(page, text=_TURNS[0]))
    if _looks(page, logprob=_LIKELY) == _looks(page, logprob=None):
        raise Skip("it shows no probabilities of tokens")
    for what, way in _ODDS.items():
        shown, unknown = _looks(page, **{"logprob": _LIKELY, **way}), _looks(page, **{**way, "logprob": None})
        assert shown != unknown, f"the probability {what} is not shown"
    return f"{len(_ODDS)} kinds of tokens"


def _looks(page: LoadedPage, **way: Any) -> str:
    found = opened(page, text=_TURNS[0], **way)
    found.check()
    return found.seen["looks"]


def check_stops(page: LoadedPage) -> None:
    """Two answers are on their way, as far as the page requests the second one; both stop, and nothing comes later."""
    found = opened(page, turns=_TURNS, submits=True, stops=True, half=True, again=_AGAIN)
    if not found.stopping:
        raise Skip('no <button> says "stop"')
    if not found.held:
        raise Skip("it requests nothing that it could stop")
    found.check()
    for number, usable in enumerate(found.stops, 1):
        assert usable, f"while an answer comes, once {number} were requested, the button that stops can't be pressed"
    assert not found.unstopped, f"{found.unstopped} requests go on, although the button that stops was pressed"
    before, after = found.seen["stopped"], found.seen["end"]
    assert after == before, f"once the answer is stopped, {before!r} still becomes {after!r}"
    assert any(_AGAIN in request["body"] for request in found.requests), "once it was stopped, it sends nothing more"


def _streamed(found: Opened) -> Opened:
    if not any(_is_stream(request["body"]) for request in found.requests):
        raise Skip("it requests no stream")
    return found


def _is_stream(body: str) -> bool:
    given: Any = json.loads(body) if body.startswith("{") else {}
    return bool(given.get("stream"))

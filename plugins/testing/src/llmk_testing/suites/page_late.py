"""Answers that come late: to what was typed, sent or given as a key before, once something newer was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmk.serve.http.pages import LoadedPage
from llmk_testing.case import Skip
from llmk_testing.opened_page import Opened, opened

_OLDER, _NEWER = "older", "newer"
_WAYS: Mapping[str, Mapping[str, Any]] = {
    "the text that was typed": {},
    "the text that was sent": {"submits": True},
    "the key that was typed": {"keys": True, "answers": "keys", "text": "a text"},
}
_LATE: Mapping[str, Mapping[str, Any]] = {
    "what answers": {},
    "the error that answers": {"refused": True},
    "the other half of what answers": {"half": True},
}


def check_late(page: LoadedPage) -> str:
    """A text is typed or sent, or a key is typed, and then a newer one, before the first is answered. The first answer
    comes late: right, an error, or its second half. A page that shows the newest answer alone must show what it shows
    where nothing older was requested. One that keeps what it has shown, as a chat does, may show both where both were
    sent."""
    tried = 0
    for what, way in _WAYS.items():
        found = list[Opened]()
        for late in _LATE.values():
            found.append(opened(page, **way, **late, turns=[_OLDER, _NEWER], held=_OLDER))
            if not _requested(found[-1]):
                break
        else:
            tried += _check(page, what, way, found)
    if not tried:
        raise Skip("no request has what is typed or sent, or a key, and shows the newest alone")
    return f"{tried} ways of asking again"


def _check(page: LoadedPage, what: str, way: Mapping[str, Any], found: Sequence[Opened]) -> bool:
    """Compares each of ``_LATE``; returns whether there is something to compare with."""
    alone = opened(page, **way, turns=[_NEWER]).seen["end"]
    newest_alone = opened(page, **way, turns=[_OLDER, _NEWER]).seen["end"] == alone
    if not newest_alone and "submits" in way:
        return False
    for late, each in zip(_LATE, found, strict=True):
        newest = alone if newest_alone else each.seen["newest"]
        assert each.seen["newest"] == newest, (
            f"as {what} is replaced by a newer one, it shows {_words(each.seen['newest'])}, not {_words(newest)}"
        )
        assert each.seen["end"] == newest, (
            f"{late} {what} before comes late, and replaces {_words(newest)} by {_words(each.seen['end'])}"
        )
    return True


def _requested(found: Opened) -> bool:
    """Both, and the older one is answered late, or was given up."""
    said = [
        request["body"] + request["url"] + request["headers"].get("authorization", "") for request in found.requests
    ]
    return bool(found.held) and any(_NEWER in each for each in said)


def _words(text: str) -> str:
    return repr(" ".join(text.split()))

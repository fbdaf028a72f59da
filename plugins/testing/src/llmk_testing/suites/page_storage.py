"""What a page keeps in the browser: it may be damaged, be another page's, or not be kept at all."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from llmk.serve.http.pages import LoadedPage
from llmk_testing.case import Skip
from llmk_testing.opened_page import KEY, Opened, opened

_TEXT = "héllo wörld"
_ODD = ("{", "null", "7", "[1, null]", '{"a": 1}')
"""What another page, or an older version, may have stored by the same names."""
_LEAVES: Sequence[Any] = (None, 7, "x", [None], {})


def check_stored(page: LoadedPage) -> str:
    """By an older version of the page, or another page of the server; or what the page itself stored, cut off or with
    other values in it."""
    for odd in _ODD:
        opened(page, text=_TEXT, stored=odd).check()
    own = opened(page, text=_TEXT, answers="key", key=KEY).stored
    for name, text in own.items():
        for damaged in _damaged(text):
            opened(page, text=_TEXT, stored={**own, name: damaged}).check()
    return f"{len(own)} values of its own"


def _damaged(text: str) -> Iterator[str]:
    yield text[: len(text) // 2]
    try:
        value = json.loads(text)
    except ValueError:
        return
    for leaf in _LEAVES:
        yield json.dumps(_replaced(value, leaf))


def _replaced(value: Any, leaf: Any) -> Any:
    """The same with another value in the place of each."""
    if isinstance(value, dict) and value:
        return {name: _replaced(each, leaf) for name, each in value.items()}
    if isinstance(value, list) and value:
        return [_replaced(each, leaf) for each in value]
    return leaf


def check_unstored(page: LoadedPage) -> None:
    """Storing fails, or the user has forbidden it, so that looking for what was stored fails, too."""
    for way in ({"text": _TEXT}, {"text": _TEXT, "answers": "key", "key": KEY}):
        kept = opened(page, **way)
        if not kept.requests:
            raise Skip("it requests nothing")
        for storage in ("full", "closed"):
            found = opened(page, **way, storage=storage)
            found.check()
            lacking = [request for request in _sent(kept) if request not in _sent(found)]
            assert not lacking, f"where storage is {storage}, it does not send {lacking[0]}"
            assert found.seen["end"] == kept.seen["end"], (
                f"where storage is {storage}, it shows {found.seen['end']!r}, and not {kept.seen['end']!r}"
            )


def _sent(found: Opened) -> list[Mapping[str, str]]:
    return [
        {"path": each["path"], "body": each["body"], "key": each["headers"].get("authorization", "")}
        for each in found.requests
    ]

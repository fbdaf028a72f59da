"""Cases of pages that run: their scripts are run in Node.js, against a server that answers in different ways."""

from __future__ import annotations

import re

from llmk.serve.http.pages import LoadedPage
from llmk_testing.case import Skip
from llmk_testing.opened_page import KEY, ROOT, Opened, opened
from llmk_testing.suites.page_answers import REASON, check_broken, check_odds, check_stops
from llmk_testing.suites.page_late import check_late
from llmk_testing.suites.page_storage import check_stored, check_unstored

_TEXT = "héllo wörld"
_HOLLOW = re.compile(r"\b(?:undefined|NaN)\b|\[object \w+\]|Cannot \w+ propert|is not (?:a function|defined|iterable)")
"""What is shown of a value that there isn't, or of a mistake of the script."""


def check_opens(page: LoadedPage) -> str:
    """Where the server answers rightly."""
    found = opened(page, text=_TEXT)
    found.check()
    assert not found.submitted, (
        f"{found.submitted[0]} is sent by the browser, which the policy refuses: preventDefault()"
    )
    hollow = _HOLLOW.search(found.seen["end"])
    assert hollow is None, f"it shows {hollow and hollow[0]!r}: {_shown(found)}"
    return f"{len(found.requests)} requests"


def check_answers(page: LoadedPage) -> None:
    """Errors in JSON and in HTML, an object without fields, and none at all, as of a server that restarts."""
    for answers in ("error", "words", "empty", "nothing"):
        opened(page, text=_TEXT, answers=answers, reason=REASON).check()


def check_error_shown(page: LoadedPage) -> None:
    """By its message or its status."""
    good = opened(page, text=_TEXT)
    _requests(good)
    found = opened(page, text=_TEXT, answers="error", reason=REASON)
    shown = found.seen["end"]
    assert REASON in shown or "500" in shown, (
        f"the server's error 500 with the message {REASON!r} is not shown: {shown!r}"
    )
    quiet = opened(page, text=_TEXT, answers="nothing").seen["end"]
    assert quiet.split() != good.seen["loaded"].split() or quiet.split() != good.seen["end"].split(), (
        f"that the server does not answer is not shown: {quiet!r}"
    )


def check_key(page: LoadedPage) -> str:
    """The server wants one. Where it is typed, and from then on, it is sent."""
    found = opened(page, text=_TEXT, answers="key", key=KEY)
    _requests(found)
    later = found.requests[found.keyed :]
    assert later, "once the key is typed, nothing is requested"
    for request in later:
        sent = request["headers"].get("authorization")
        assert sent == f"Bearer {KEY}", (
            f"{request['url']} is requested with the authorization {sent!r}, where the user's key was typed into an "
            'input of type="password"'
        )
    return f"{len(later)} requests"


def check_places(page: LoadedPage) -> None:
    """Below the path of a proxy."""
    for request in _requests(opened(page, text=_TEXT)).requests:
        assert request["url"].startswith(f"{ROOT}/"), f"it requests {request['url']}, where it is served below {ROOT}/"


def check_pieces(page: LoadedPage) -> None:
    """Characters of several bytes are cut, and so are lines."""
    whole = _requests(opened(page, text=_TEXT))
    for size in (1, 7):
        found = opened(page, text=_TEXT, pieces=size)
        found.check()
        assert found.seen["end"] == whole.seen["end"], (
            f"of an answer in pieces of {size} bytes, it shows {_shown(found)}, and of a whole one {_shown(whole)}"
        )


def check_pace(page: LoadedPage) -> None:
    """In virtual time: what is typed at once is one request, and what is polled has a second between two."""
    found = _requests(opened(page, text=_TEXT))
    sent: dict[str, list[float]] = {}
    for request in found.requests:
        sent.setdefault(request["path"] + request["body"], []).append(request["at"])
    for what, times in sent.items():
        many = max(sum(start <= at < start + 1000 for at in times) for start in times)
        assert many <= 5, f"{many} requests for {what} within a second"


def _requests(found: Opened) -> Opened:
    if not found.requests:
        raise Skip("it requests nothing")
    return found


def _shown(found: Opened) -> str:
    return repr(" ".join(found.seen["end"].split()))


CHECKS = (
    ("its scripts run, send no form, and show values that there are", check_opens),
    ("no answer of the server is an error that nothing catches", check_answers),
    ("what is stored in the browser may be anything", check_stored),
    ("it works the same where nothing can be stored", check_unstored),
    ("an error of the server is shown", check_error_shown),
    ("an answer that breaks off is shown with its error", check_broken),
    ("probabilities of tokens are shown, of any value", check_odds),
    ("a button that stops does, at any time while an answer comes", check_stops),
    ("requests have the user's key", check_key),
    ("requests go to the server below a proxy's path", check_places),
    ("a late answer to what was typed or sent before changes nothing", check_late),
    ("answers in small pieces are shown as whole ones are", check_pieces),
    ("no request is repeated without a pause", check_pace),
)

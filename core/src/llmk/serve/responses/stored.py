"""What is stored of responses and conversations, and what requests get of it.

A response has an object with the response, as clients get it; its child, a *turn*, has what later requests need of it.
An item of a response has an id with the response's number, so it is found by its id alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw

from llmk.api import RequestError
from llmk.serve.responses.route import References
from llmk.serve.responses.translation import NotFound
from llmk.serve.storage.errors import StorageFull, UnknownObject

if TYPE_CHECKING:
    from llmk.serve.storage.transaction import Transaction

RESPONSE, TURN, EVENTS, CONVERSATION, ITEM = "response", "turn", "response_events", "conversation", "item"
UNFINISHED = ("queued", "in_progress")
MOST_REFERENCES = 1000
"""Stored items that one request may refer to."""
_PAGE = 100
_EVICTED = 16
"""Responses that are deleted at once where a client has stored too much."""
_OUTPUT_ID = re.compile(r"[a-z]+_([0-9a-f]{32})o[0-9a-f]{4,8}")


class Turn(msgspec.Struct):
    """One response, for requests that continue it. ``input`` are its request's own items. Items are encoded JSON, and
    turns are encoded so that they are read without a look at that."""

    status: str
    background: bool = False
    previous: str | None = None
    conversation: str | None = None
    input: list[bytes] = []
    output: list[bytes] = []


@dataclass(frozen=True, slots=True)
class Page:
    """Which items are listed."""

    after: str
    limit: int
    newest_first: bool


class Named(msgspec.Struct):
    """An item, of which only the id matters."""

    id: str


def id_of(item: bytes | Raw) -> str:
    """The id of a stored item."""
    return msgspec.json.decode(item, type=Named).id


def response_id(number: str) -> str:
    """The id of the response with a number of 32 hex digits."""
    return f"resp_{number}"


def turn_id(id: str) -> str:
    """The id of a response's turn."""
    return f"turn_{id.removeprefix('resp_')}"


def events_id(id: str) -> str:
    """The id of the events of a response."""
    return f"events_{id.removeprefix('resp_')}"


def put_response(to: Transaction, tenant: str, id: str, response: bytes, turn: Turn) -> None:
    """Stores a new response. Where the tenant stores too much, its oldest responses are deleted.

    Raises StorageFull if what fills the storage is not responses.
    """
    data = msgspec.msgpack.encode(turn)
    while True:
        try:
            to.check_room(tenant, len(response) + len(data), num_new=2)
            break
        except StorageFull:
            oldest, _ = to.page(tenant, RESPONSE, limit=_EVICTED, newest_first=False)
            if not oldest:
                raise
            for old in oldest:
                to.delete(tenant, RESPONSE, old.id)
    to.put(tenant, RESPONSE, id, response)
    to.put(tenant, TURN, turn_id(id), data, parent=id)


def end_response(to: Transaction, tenant: str, id: str, response: bytes, turn: Turn, events: bytes) -> None:
    """Replaces a background response by its end, with the ``events`` of its stream. Nothing is stored if it was
    deleted."""
    try:
        to.replace(tenant, RESPONSE, id, response)
        to.replace(tenant, TURN, turn_id(id), msgspec.msgpack.encode(turn))
    except UnknownObject:
        return
    if events:
        to.put(tenant, EVENTS, events_id(id), events, parent=id)


def append(to: Transaction, tenant: str, conversation: str, items: Iterable[bytes]) -> None:
    """Adds items to a conversation, unless it was deleted."""
    try:
        to.get(tenant, CONVERSATION, conversation)
    except UnknownObject:
        return
    to.put_all(tenant, ITEM, [(id_of(item), item) for item in items], parent=conversation)


def get_turn(to: Transaction, tenant: str, id: str) -> Turn:
    """The turn of a response. Raises UnknownObject."""
    to.get(tenant, RESPONSE, id)
    return msgspec.msgpack.decode(to.get(tenant, TURN, turn_id(id)).data, type=Turn)


def fetch(to: Transaction, tenant: str, wanted: References, most_bytes: int) -> tuple[list[Raw], dict[str, Raw]]:
    """The history that a request continues, and the items that it refers to.

    Raises:
        NotFound: if there is no such response or conversation.
        RequestError: if there are more than ``most_bytes``, or a response can't be continued.
    """
    room = _Room(most_bytes)
    history: list[Raw] = []
    if wanted.previous_response_id is not None:
        history = _chain(to, tenant, wanted.previous_response_id, room)
    elif wanted.conversation is not None:
        history = _conversation(to, tenant, wanted.conversation, room)
    return history, _referred(to, tenant, wanted.items, room)


def input_page(to: Transaction, tenant: str, id: str, page: Page) -> tuple[list[Raw], list[str], bool]:
    """A page of the items of a response's request, their ids, and whether there are more. Raises UnknownObject."""
    turn = get_turn(to, tenant, id)
    items = turn.input[::-1] if page.newest_first else turn.input
    ids = [id_of(item) for item in items]
    if page.after and page.after not in ids:
        raise UnknownObject("item", page.after)
    start = ids.index(page.after) + 1 if page.after else 0
    end = start + page.limit
    return [Raw(item) for item in items[start:end]], ids[start:end], end < len(items)


class _Room:
    """Counts the bytes of a history."""

    def __init__(self, most: int) -> None:
        self._most = self._left = most

    def take(self, size: int) -> None:
        """Raises :class:`~llmk.api.RequestError` if there is no room for ``size`` bytes more."""
        self._left -= size
        if self._left < 0:
            message = f"the stored conversation has more than {self._most} bytes (server.max_request_bytes)"
            raise RequestError(message, param="input", hint="start a new one")


def _chain(to: Transaction, tenant: str, last: str, room: _Room) -> list[Raw]:
    """The items of a response and of those before it, oldest first."""
    turns: list[Turn] = []
    id: str | None = last
    while id is not None:
        try:
            turn = get_turn(to, tenant, id)
        except UnknownObject:
            what = f"there is no response {id!r}" + (f", which {last!r} continues" if id != last else "")
            hint = "responses are kept for a time, unless they are deleted or 'store' is false"
            raise NotFound(what, param="previous_response_id", hint=hint) from None
        if turn.conversation is not None:
            hint = f"continue it with 'conversation': {turn.conversation!r}"
            raise RequestError(f"{id!r} is part of a conversation", param="previous_response_id", hint=hint)
        if turn.status in UNFINISHED:
            raise RequestError(f"the response {id!r} is still {turn.status}", param="previous_response_id")
        room.take(sum(map(len, (*turn.input, *turn.output))))
        turns.append(turn)
        id = turn.previous
    return [Raw(item) for turn in reversed(turns) for item in (*turn.input, *turn.output)]


def _conversation(to: Transaction, tenant: str, id: str, room: _Room) -> list[Raw]:
    try:
        to.get(tenant, CONVERSATION, id)
    except UnknownObject:
        raise NotFound(f"there is no conversation {id!r}", param="conversation") from None
    items: list[Raw] = []
    after, more = "", True
    while more:
        page, more = to.page(tenant, ITEM, parent=id, after=after, limit=_PAGE, newest_first=False)
        for found in page:
            room.take(found.num_bytes)
            items.append(Raw(found.data))
        after = page[-1].id if page else ""
    return items


def _referred(to: Transaction, tenant: str, ids: Sequence[str], room: _Room) -> dict[str, Raw]:
    """The items with ``ids`` that there are."""
    if len(ids) > MOST_REFERENCES:
        raise RequestError(f"{len(ids)} items are references; the limit is {MOST_REFERENCES}", param="input")
    found: dict[str, Raw] = {}
    for id in ids:
        if id not in found:
            try:
                found |= _owned(to, tenant, id)
            except UnknownObject:
                continue
            room.take(len(bytes(found.get(id, b""))))
    return found


def _owned(to: Transaction, tenant: str, id: str) -> dict[str, Raw]:
    """The item with an id, and others that are stored with it."""
    match = _OUTPUT_ID.fullmatch(id)
    if match is None:
        return {id: Raw(to.get(tenant, ITEM, id).data)}
    return {id_of(item): Raw(item) for item in get_turn(to, tenant, response_id(match[1])).output}

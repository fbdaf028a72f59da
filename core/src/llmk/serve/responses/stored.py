"""What is stored of responses and conversations.

A response has an object with the response, as clients get it; its child, a *turn*, has what later requests need of it.
An item of a response has an id with the response's number, so it is found by its id alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw

from llmk.serve.storage.errors import StorageFull, UnknownObject

if TYPE_CHECKING:
    from llmk.serve.storage.transaction import Transaction

RESPONSE, TURN, EVENTS, CONVERSATION, ITEM = "response", "turn", "response_events", "conversation", "item"
UNFINISHED = ("queued", "in_progress")
_EVICTED = 16
"""Responses that are deleted at once where a client has stored too much."""


class Turn(msgspec.Struct):
    """One response, for requests that continue it. ``input`` are its request's own items. Items are encoded JSON, and
    turns are encoded so that they are read without a look at that. ``server`` is the name of the one that makes it."""

    status: str
    background: bool = False
    previous: str | None = None
    conversation: str | None = None
    input: list[bytes] = []
    output: list[bytes] = []
    server: str = ""


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
    _make_room(to, tenant, len(response) + len(data), num_new=2)
    to.put(tenant, RESPONSE, id, response)
    to.put(tenant, TURN, turn_id(id), data, parent=id)


def end_response(to: Transaction, tenant: str, id: str, response: bytes, turn: Turn, events: bytes) -> None:
    """Replaces a background response by its end, with the ``events`` of its stream, as :func:`put_response` stores it.
    ``turn`` gets the input that is stored. Nothing is stored if it was deleted."""
    try:
        turn.input = get_turn(to, tenant, id).input
        data = msgspec.msgpack.encode(turn)
        _make_room(to, tenant, len(response) + len(data) + len(events), num_new=1, but=id)
        to.replace(tenant, RESPONSE, id, response)
        to.replace(tenant, TURN, turn_id(id), data)
    except UnknownObject:
        return
    if events:
        to.put(tenant, EVENTS, events_id(id), events, parent=id)


def fail_response(to: Transaction, tenant: str, id: str, response: bytes, turn: Turn) -> None:
    """Replaces a background response by one that says that its end can't be stored. That one has room."""
    try:
        to.replace(tenant, RESPONSE, id, response, checked=False)
        to.replace(tenant, TURN, turn_id(id), msgspec.msgpack.encode(turn), checked=False)
    except UnknownObject:
        return


def _make_room(to: Transaction, tenant: str, num_bytes: int, *, num_new: int, but: str = "") -> None:
    """Deletes the tenant's oldest responses, except ``but``, until it can store so much more. Raises StorageFull."""
    while True:
        try:
            return to.check_room(tenant, num_bytes, num_new=num_new)
        except StorageFull:
            oldest = [id for id in to.oldest(tenant, RESPONSE, _EVICTED) if id != but]
            if not oldest:
                raise
            for id in oldest:
                to.delete(tenant, RESPONSE, id)


def append(to: Transaction, tenant: str, conversation: str, items: Iterable[bytes]) -> None:
    """Adds items to a conversation, unless it was deleted."""
    try:
        to.get(tenant, CONVERSATION, conversation)
    except UnknownObject:
        return
    to.put_all(tenant, ITEM, [(id_of(item), item) for item in items], parent=conversation)


def get_turn(to: Transaction, tenant: str, id: str) -> Turn:
    """The turn of a response. Raises UnknownObject."""
    try:
        found = to.get(tenant, TURN, turn_id(id))
    except UnknownObject:
        raise UnknownObject(RESPONSE, id) from None
    return msgspec.msgpack.decode(found.data, type=Turn)


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

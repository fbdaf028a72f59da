"""Fetches what a request refers to: earlier responses, a conversation, stored items.

It may be much, so it is read in small transactions: other clients use the database between them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Raw

from llmk.api import RequestError
from llmk.serve.responses.route import References
from llmk.serve.responses.stored import CONVERSATION, ITEM, UNFINISHED, Turn, get_turn, id_of, response_id
from llmk.serve.responses.translation import NotFound
from llmk.serve.storage.errors import UnknownObject
from llmk.serve.storage.store import Storage

if TYPE_CHECKING:
    from llmk.serve.storage.transaction import StoredObject, Transaction

MOST_REFERENCES = 1000
"""Stored items that one request may refer to."""
SEARCHED = 4
"""Responses in which items are searched may have so many times the bytes of a history."""
_PAGE = 100
AT_ONCE = 20
"""Responses, or items that are referred to, that are read in one transaction."""
_OUTPUT_ID = re.compile(r"[a-z]+_([0-9a-f]{32})o[0-9a-f]{4,8}")


async def fetch(
    storage: Storage, tenant: str, wanted: References, *, most_bytes: int, most_items: int
) -> tuple[list[Raw], dict[str, Raw]]:
    """The history that a request continues, and the items that it refers to.

    Raises:
        NotFound: if there is no such response or conversation.
        RequestError: if there are more than ``most_bytes`` or ``most_items``, or a response can't be continued.
    """
    fetcher = _Fetcher(storage, tenant, most_bytes, most_items)
    history: list[Raw] = []
    if wanted.previous_response_id is not None:
        history = await fetcher.chain(wanted.previous_response_id)
    elif wanted.conversation is not None:
        history = await fetcher.conversation(wanted.conversation)
    return history, await fetcher.referred(wanted.items)


class _Fetcher:
    """Fetches for one request."""

    def __init__(self, storage: Storage, tenant: str, most_bytes: int, most_items: int) -> None:
        self._storage = storage
        self._tenant = tenant
        self._room = _Room(most_bytes, most_items)
        self._searched = _Room(SEARCHED * most_bytes, SEARCHED * most_items)

    async def chain(self, last: str) -> list[Raw]:
        """The items of a response and of those before it, oldest first."""
        turns: list[Turn] = []
        id: str | None = last
        while id is not None:
            turns += await self._storage.run(partial(self._turns, last, id), self._tenant)
            id = turns[-1].previous
        return [Raw(item) for turn in reversed(turns) for item in (*turn.input, *turn.output)]

    async def conversation(self, id: str) -> list[Raw]:
        """The items of a conversation."""
        items: list[Raw] = []
        after, more = "", True
        while more:
            page, more = await self._storage.run(partial(self._page, id, after), self._tenant)
            self._room.take([found.data for found in page])
            items += [Raw(found.data) for found in page]
            after = page[-1].id if page else ""
        return items

    async def referred(self, ids: Sequence[str]) -> dict[str, Raw]:
        """The items with ``ids`` that there are."""
        if len(ids) > MOST_REFERENCES:
            raise RequestError(f"{len(ids)} items are references; the limit is {MOST_REFERENCES}", param="input")
        match = {id: _OUTPUT_ID.fullmatch(id) for id in ids}
        found: dict[str, Raw] = {}
        for some in _batches([id for id in match if not match[id]]):
            found |= await self._storage.run(partial(self._items, some), self._tenant)
        responses = dict.fromkeys(response_id(part[1]) for part in match.values() if part)
        for some in _batches([*responses]):
            outputs = await self._storage.run(partial(self._outputs, some), self._tenant)
            found |= {id: item for id, item in outputs.items() if id in match}
        self._room.take([bytes(item) for item in found.values()])
        return found

    def _turns(self, last: str, id: str, to: Transaction) -> list[Turn]:
        """Some responses, from the one with ``id`` back."""
        turns: list[Turn] = []
        wanted: str | None = id
        while wanted is not None and len(turns) < AT_ONCE:
            turn = self._turn(to, wanted, last)
            self._room.take((*turn.input, *turn.output))
            turns.append(turn)
            wanted = turn.previous
        return turns

    def _turn(self, to: Transaction, id: str, last: str) -> Turn:
        try:
            turn = get_turn(to, self._tenant, id)
        except UnknownObject:
            what = f"there is no response {id!r}" + (f", which {last!r} continues" if id != last else "")
            hint = "responses are kept for a time, unless they are deleted or 'store' is false"
            raise NotFound(what, param="previous_response_id", hint=hint) from None
        if turn.conversation is not None:
            hint = f"continue it with 'conversation': {turn.conversation!r}"
            raise RequestError(f"{id!r} is part of a conversation", param="previous_response_id", hint=hint)
        if turn.status in UNFINISHED:
            raise RequestError(f"the response {id!r} is still {turn.status}", param="previous_response_id")
        return turn

    def _page(self, id: str, after: str, to: Transaction) -> tuple[list[StoredObject], bool]:
        try:
            to.get(self._tenant, CONVERSATION, id)
        except UnknownObject:
            raise NotFound(f"there is no conversation {id!r}", param="conversation") from None
        return to.page(self._tenant, ITEM, parent=id, after=after, limit=_PAGE, newest_first=False)

    def _items(self, ids: Sequence[str], to: Transaction) -> dict[str, Raw]:
        """The items of conversations with ``ids`` that there are."""
        found: dict[str, Raw] = {}
        for id in ids:
            with contextlib.suppress(UnknownObject):
                found[id] = Raw(to.get(self._tenant, ITEM, id).data)
                self._searched.take([bytes(found[id])])
        return found

    def _outputs(self, ids: Sequence[str], to: Transaction) -> dict[str, Raw]:
        """The items of the responses with ``ids`` that there are, by their ids."""
        found: dict[str, Raw] = {}
        for id in ids:
            with contextlib.suppress(UnknownObject):
                turn = get_turn(to, self._tenant, id)
                self._searched.take((*turn.input, *turn.output))
                found |= {id_of(item): Raw(item) for item in turn.output}
        return found


def _batches(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    return (ids[at : at + AT_ONCE] for at in range(0, len(ids), AT_ONCE))


class _Room:
    """Counts what was read."""

    def __init__(self, most_bytes: int, most_items: int) -> None:
        self._limits = ((most_bytes, "bytes (server.max_request_bytes)"), (most_items, "items (limits.parts)"))
        self._taken = (0, 0)

    def take(self, items: Sequence[bytes]) -> None:
        """Raises :class:`~llmk.api.RequestError` if there is no room for ``items``."""
        num_bytes, num_items = self._taken
        self._taken = (num_bytes + sum(map(len, items)), num_items + len(items))
        for taken, (most, what) in zip(self._taken, self._limits, strict=True):
            if taken > most:
                message = f"the stored conversation has more than {most} {what}"
                raise RequestError(message, param="input", hint="start a new one")

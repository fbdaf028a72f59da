"""A transaction: what can be done with stored objects. Imports SQLAlchemy."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, delete, func, insert, select, update

from llmk.config.storage_section import StorageSection
from llmk.serve.storage.batch_requests import BatchRequests, fitting
from llmk.serve.storage.errors import StorageFull, UnknownObject
from llmk.serve.storage.tables import MOST_ID, OBJECTS


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object. ``data`` is its JSON; ``created_at`` and ``expires_at`` are in seconds since 1970."""

    id: str
    kind: str
    tenant: str
    parent: str
    created_at: int
    expires_at: int
    num_bytes: int
    data: bytes


_FIELDS = tuple(OBJECTS.c[name] for name in StoredObject.__dataclass_fields__)


class Transaction(BatchRequests):
    """A transaction of the served ``model``. All that one function does in it is stored, or none of it if it raises.

    Objects are of a ``kind`` (``"file"``) and belong to a tenant; no method finds another tenant's. An object may have
    a ``parent``, with which it is deleted.
    """

    def __init__(self, connection: Connection, section: StorageSection, model: str) -> None:
        self.connection = connection
        self.model = model
        self._section = section

    def put(
        self,
        tenant: str,
        kind: str,
        id: str,
        data: bytes,
        *,
        parent: str = "",
        expires_at: int | None = None,
        more_bytes: int = 0,
        checked: bool = True,
    ) -> None:
        """Stores a new object, until ``expires_at``, or for ``storage.seconds``. ``more_bytes`` are stored elsewhere
        for it, and count for the tenant's limit, which is not ``checked`` for the server's own work.

        Raises StorageFull if the tenant stores too much.
        """
        now = int(time.time())
        if checked:
            self.check_room(tenant, len(data) + more_bytes, num_new=1)
        row = {
            "id": id,
            "model": self.model,
            "tenant": tenant,
            "kind": kind,
            "parent": parent,
            "created_at": now,
            "expires_at": int(now + self._section.seconds) if expires_at is None else expires_at,
            "num_bytes": len(data) + more_bytes,
            "data": data,
        }
        self.connection.execute(insert(OBJECTS).values(row))

    def put_all(self, tenant: str, kind: str, objects: Sequence[tuple[str, bytes]], *, parent: str) -> None:
        """Stores new objects, which are ids and data, in their order, as :meth:`put` does."""
        now = int(time.time())
        self.check_room(tenant, sum(len(data) for _, data in objects), num_new=len(objects))
        same = {"model": self.model, "tenant": tenant, "kind": kind, "parent": parent, "created_at": now}
        same["expires_at"] = int(now + self._section.seconds)
        rows = [{**same, "id": id, "num_bytes": len(data), "data": data} for id, data in objects]
        if rows:
            self.connection.execute(insert(OBJECTS), rows)

    def get(self, tenant: str, kind: str, id: str) -> StoredObject:
        """The object, which no other transaction changes until this one ends. Raises UnknownObject."""
        row = None
        if len(id) <= MOST_ID and id.isprintable():
            found = select(*_FIELDS).where(self._one(tenant, kind, id), OBJECTS.c.expires_at > int(time.time()))
            row = self.connection.execute(found.with_for_update()).one_or_none()
        if row is None:
            raise UnknownObject(kind, id)
        return StoredObject(*row)

    def replace(
        self, tenant: str, kind: str, id: str, data: bytes, *, more_bytes: int = 0, checked: bool = True
    ) -> None:
        """Replaces an object's data, as :meth:`put` stores it. Raises UnknownObject and StorageFull."""
        old = self.get(tenant, kind, id)
        size = len(data) + more_bytes
        if checked and size > old.num_bytes:
            self.check_room(tenant, size - old.num_bytes)
        new = update(OBJECTS).where(self._one(tenant, kind, id)).values(data=data, num_bytes=size)
        self.connection.execute(new)

    def delete(self, tenant: str, kind: str, id: str) -> None:
        """Deletes an object and those whose parent it is. Raises UnknownObject."""
        self.get(tenant, kind, id)
        mine = and_(OBJECTS.c.model == self.model, OBJECTS.c.tenant == tenant)
        self.connection.execute(delete(OBJECTS).where(mine, OBJECTS.c.parent == id))
        self.connection.execute(delete(OBJECTS).where(self._one(tenant, kind, id)))

    def page(
        self, tenant: str, kind: str, *, parent: str = "", after: str = "", limit: int = 20, newest_first: bool = True
    ) -> tuple[list[StoredObject], bool]:
        """Up to ``limit`` objects in the order of creation, from the one after ``after`` on, and whether there are
        more. There are fewer if together they are large. Raises UnknownObject if there is no ``after``."""
        place = OBJECTS.c.position
        table = OBJECTS.c
        wanted = [table.model == self.model, table.tenant == tenant, table.kind == kind, table.parent == parent]
        wanted.append(table.expires_at > int(time.time()))
        if after:
            self.get(tenant, kind, after)
            start = select(place).where(self._one(tenant, kind, after)).scalar_subquery()
            wanted.append(place < start if newest_first else place > start)
        order = place.desc() if newest_first else place
        sizes = select(place, func.length(table.data)).where(*wanted).order_by(order).limit(limit + 1)
        found = self.connection.execute(sizes).all()
        count = fitting([size for _, size in found[:limit]])
        if not count:
            return [], False
        ends = sorted((found[0][0], found[count - 1][0]))
        rows = self.connection.execute(select(*_FIELDS).where(*wanted, place.between(*ends)).order_by(order))
        return [StoredObject(*row) for row in rows], len(found) > count

    def oldest(self, tenant: str, kind: str, limit: int) -> list[str]:
        """The ids of up to ``limit`` objects, oldest first."""
        table = OBJECTS.c
        mine = and_(table.model == self.model, table.tenant == tenant, table.kind == kind, table.parent == "")
        found = select(table.id).where(mine).order_by(table.position).limit(limit)
        return list(self.connection.execute(found).scalars())

    def all_of(self, kind: str) -> Sequence[StoredObject]:
        """The objects of a kind of all tenants, oldest first: for the server's own work."""
        mine = and_(OBJECTS.c.model == self.model, OBJECTS.c.kind == kind)
        return [
            StoredObject(*row)
            for row in self.connection.execute(select(*_FIELDS).where(mine).order_by(OBJECTS.c.position))
        ]

    def room(self, tenant: str) -> int:
        """The bytes that the tenant can store. Raises StorageFull if it can store no object."""
        self.check_room(tenant, 0, num_new=1)
        return self._section.bytes_per_client - self._held(tenant)[1]

    def check_room(self, tenant: str, num_bytes: int, *, num_new: int = 0) -> None:
        """Raises StorageFull if the tenant can't store ``num_bytes`` and ``num_new`` objects more."""
        objects, total = self._held(tenant)
        limits: tuple[tuple[str, Any, int], ...] = (
            ("objects", objects + num_new, self._section.objects_per_client),
            ("bytes", total + num_bytes, self._section.bytes_per_client),
        )
        for what, needed, most in limits:
            if needed > most:
                message = f"you would store {needed} {what}; the limit is {most} (storage.{what}_per_client)"
                raise StorageFull(message, hint="delete files, responses or conversations that you no longer need")

    def delete_expired(self, limit: int) -> list[str]:
        """Deletes up to ``limit`` objects of all tenants that have expired, and what belongs to them. Returns the
        ids."""
        gone = and_(OBJECTS.c.model == self.model, OBJECTS.c.expires_at <= int(time.time()))
        found = self.connection.execute(select(OBJECTS.c.id, OBJECTS.c.tenant).where(gone).limit(limit)).all()
        for tenant in {tenant for _, tenant in found}:
            ids = [id for id, owner in found if owner == tenant]
            mine = and_(OBJECTS.c.model == self.model, OBJECTS.c.tenant == tenant)
            self.connection.execute(delete(OBJECTS).where(mine, OBJECTS.c.parent.in_(ids)))
            self.connection.execute(delete(OBJECTS).where(mine, OBJECTS.c.id.in_(ids)))
            self.forget_requests(*ids)
        return [id for id, _ in found]

    def _held(self, tenant: str) -> tuple[int, int]:
        """How many objects, and bytes, a tenant stores."""
        held = select(func.count(), func.coalesce(func.sum(OBJECTS.c.num_bytes), 0))
        mine = held.where(OBJECTS.c.model == self.model, OBJECTS.c.tenant == tenant)
        objects, total = self.connection.execute(mine).one()
        return int(objects), int(total)

    def _one(self, tenant: str, kind: str, id: str) -> ColumnElement[bool]:
        table = OBJECTS.c
        return and_(table.model == self.model, table.tenant == tenant, table.kind == kind, table.id == id)

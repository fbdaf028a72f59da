"""Stored objects: of one tenant each, limited, in order, and gone when they have expired."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from llmk.config.storage_section import StorageSection
from llmk.serve.storage.errors import DatabaseFailed, StorageFull, StorageOff, UnknownObject
from llmk.serve.storage.places import Places
from llmk.serve.storage.store import Storage, folder_of
from llmk.serve.storage.transaction import StoredObject, Transaction

T = TypeVar("T")


class Stored:
    """A storage, used from outside an event loop."""

    def __init__(self, folder: Path, model: str = "m", **section: object) -> None:
        self.storage = Storage(StorageSection.model_validate({"folder": str(folder), **section}), model)

    def run(self, work: Callable[[Transaction], T]) -> T:
        async def main() -> T:
            return await self.storage.run(work)

        return asyncio.run(main())


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    return Stored(tmp_path)


def test_an_object_is_found_by_its_tenant_only(stored: Stored, tmp_path: Path) -> None:
    stored.run(lambda to: to.put("a", "file", "file-1", b"{}"))
    assert stored.run(lambda to: to.get("a", "file", "file-1")).data == b"{}"
    for tenant, kind, id in (
        ("b", "file", "file-1"),
        ("a", "batch", "file-1"),
        ("a", "file", "x" * 5000),
        ("a", "file", "\0"),
    ):
        for use in (Transaction.get, Transaction.delete):
            with pytest.raises(UnknownObject, match=f"there is no {kind}"):
                stored.run(lambda to, use=use, key=(tenant, kind, id): use(to, *key))  # type: ignore[misc]
    assert stored.run(lambda to: to.page("b", "file")) == ([], False)
    with pytest.raises(UnknownObject):
        Stored(tmp_path, "another model").run(lambda to: to.get("a", "file", "file-1"))


def test_pages_are_in_the_order_of_creation(stored: Stored) -> None:
    def fill(to: Transaction) -> None:
        for number in range(5):
            to.put("a", "item", f"i{number}", b"{}", parent="c" if number < 4 else "")

    def ids(**how: object) -> tuple[str, bool]:
        found, more = stored.run(lambda to: to.page("a", "item", parent="c", **how))  # type: ignore[arg-type]
        return "".join(item.id[1] for item in found), more

    stored.run(fill)
    assert ids() == ("3210", False)
    assert ids(limit=2) == ("32", True)
    assert ids(limit=2, after="i2") == ("10", False)
    assert ids(limit=2, after="i0", newest_first=False) == ("12", True)
    with pytest.raises(UnknownObject):
        ids(after="i9")


def test_a_parent_is_deleted_with_what_belongs_to_it(stored: Stored) -> None:
    def fill(to: Transaction) -> None:
        to.put("a", "conversation", "c", b"{}")
        to.put("a", "item", "i", b"{}", parent="c")
        to.put("a", "item", "other", b"{}", parent="d")
        to.delete("a", "conversation", "c")

    stored.run(fill)
    for kind, id in (("conversation", "c"), ("item", "i")):
        with pytest.raises(UnknownObject):
            stored.run(lambda to, key=(kind, id): to.get("a", *key))  # type: ignore[misc]
    assert stored.run(lambda to: to.get("a", "item", "other")).parent == "d"


def test_a_transaction_is_stored_whole_or_not_at_all(stored: Stored) -> None:
    def fail(to: Transaction) -> None:
        to.put("a", "file", "file-1", b"{}")
        raise KeyError

    with pytest.raises(KeyError):
        stored.run(fail)
    with pytest.raises(UnknownObject):
        stored.run(lambda to: to.get("a", "file", "file-1"))


def test_a_tenant_stores_no_more_than_it_may(tmp_path: Path) -> None:
    stored = Stored(tmp_path, objects_per_client=2, bytes_per_client=100)
    stored.run(lambda to: to.put("a", "file", "1", b"x" * 40, more_bytes=50))
    with pytest.raises(StorageFull, match=r"you would store 101 bytes; the limit is 100 \(storage.bytes_per_client\)"):
        stored.run(lambda to: to.put("a", "file", "2", b"x" * 11))
    with pytest.raises(StorageFull, match="you would store 101 bytes"):
        stored.run(lambda to: to.replace("a", "file", "1", b"x" * 101))
    stored.run(lambda to: to.put("b", "file", "3", b"x" * 100))
    stored.run(lambda to: to.replace("a", "file", "1", b"x"))
    stored.run(lambda to: to.put("a", "file", "2", b"x" * 99))
    with pytest.raises(StorageFull, match="you would store 3 objects; the limit is 2"):
        stored.run(lambda to: to.put("a", "file", "4", b""))


def test_a_page_of_large_objects_has_fewer(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmk.serve.storage.batch_requests.PAGE_BYTES", 100)
    sizes = {"a": 60, "b": 60, "c": 30, "d": 500, "e": 1}
    stored.run(lambda to: to.put_all("a", "item", [(id, b"x" * size) for id, size in sizes.items()], parent="c"))
    pages, after, more = [], "", True
    while more:

        def page(to: Transaction, after: str = after) -> tuple[list[StoredObject], bool]:
            return to.page("a", "item", parent="c", after=after, limit=4, newest_first=False)

        found, more = stored.run(page)
        pages.append("".join(item.id for item in found))
        after = pages[-1][-1]
    assert pages == ["a", "bc", "d", "e"]


def test_many_expired_objects_are_deleted_some_at_a_time(
    stored: Stored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmk.serve.storage.store.SWEPT", 2)

    def fill(to: Transaction) -> None:
        for number in range(5):
            to.put("ab"[number % 2], "file", f"{number}", b"{}", expires_at=1)
            to.put("ab"[number % 2], "part", f"part-{number}", b"{}", parent=f"{number}")

    stored.run(fill)
    again = Stored(tmp_path)
    left = [again.run(lambda to: sum(to._held(tenant)[0] for tenant in "ab")) for _ in range(4)]
    assert left == [6, 2, 0, 0]


def test_nothing_is_found_by_reading_all_of_a_tenants_objects(stored: Stored) -> None:
    from sqlalchemy import delete

    def plan(to: Transaction) -> str:
        children = delete(OBJECTS).where(
            OBJECTS.c.model == "m", OBJECTS.c.tenant == "a", OBJECTS.c.parent.in_(["x", "y"])
        )
        text = str(children.compile(to.connection, compile_kwargs={"literal_binds": True}))
        return str(to.connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}").all())

    from llmk.serve.storage.tables import OBJECTS

    assert "parent=?" in stored.run(plan)


def test_tenants_take_turns() -> None:
    async def use(places: Places, tenant: str, order: list[str]) -> None:
        await places.enter(tenant)
        order.append(tenant)
        await asyncio.sleep(0)
        places.leave()

    async def scenario() -> None:
        places, order = Places(1), list[str]()
        flood = [asyncio.create_task(use(places, "flood", order)) for _ in range(50)]
        await asyncio.sleep(0)
        gone = asyncio.create_task(use(places, "gone", order))
        await asyncio.sleep(0)
        gone.cancel()
        await use(places, "quiet", order)
        assert len(order) <= 4
        await asyncio.gather(*flood)
        assert order.count("flood") == 50
        assert "gone" not in order
        await asyncio.wait_for(places.enter("last"), 1)

    asyncio.run(scenario())


def test_what_has_started_is_not_cancelled(stored: Stored) -> None:
    async def scenario() -> None:
        started, go = threading.Event(), threading.Event()

        def work(to: Transaction) -> None:
            started.set()
            assert go.wait(10)
            to.put("a", "file", "1", b"{}")

        first = asyncio.create_task(stored.storage.run(work, "a"))
        await asyncio.to_thread(started.wait, 10)
        first.cancel()
        second = asyncio.create_task(stored.storage.run(lambda to: to.get("a", "file", "1"), "b"))
        await asyncio.sleep(0.05)
        go.set()
        assert (await second).id == "1"

    asyncio.run(scenario())


def test_expired_objects_are_gone_with_their_content(stored: Stored, tmp_path: Path) -> None:
    def fill(to: Transaction) -> None:
        to.put("a", "file", "old", b"{}", expires_at=1)
        to.put("a", "part", "part", b"{}", parent="old")
        to.put("a", "file", "new", b"{}")

    stored.run(fill)
    with pytest.raises(UnknownObject):
        stored.run(lambda to: to.get("a", "file", "old"))
    stored.storage.content("old").write_bytes(b"content")
    again = Stored(tmp_path)
    again.run(lambda to: to.get("a", "file", "new"))
    assert not again.storage.content("old").exists()
    with pytest.raises(UnknownObject):
        again.run(lambda to: to.get("a", "part", "part"))


def test_objects_outlive_the_server(stored: Stored, tmp_path: Path) -> None:
    assert not stored.storage.is_used
    stored.run(lambda to: to.put("a", "file", "1", b"{}"))
    again = Stored(tmp_path)
    assert again.storage.is_used
    assert again.run(lambda to: to.get("a", "file", "1")).kind == "file"


def test_memory_is_forgotten() -> None:
    stored = Stored(Path("unused"), database="memory")
    stored.run(lambda to: to.put("a", "file", "1", b"{}"))
    folder = stored.storage.folder
    assert folder.exists()
    assert stored.run(lambda to: to.get("a", "file", "1")).id == "1"
    asyncio.run(stored.storage.aclose())
    assert not folder.exists()
    assert not stored.storage.is_used


def test_why_nothing_can_be_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StorageOff, match=r"stores nothing \(storage.database = 'none'\)"):
        Stored(tmp_path, database="none").run(lambda to: to.get("a", "file", "1"))
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(StorageOff, match=r"pip install 'llmk-core\[storage\]'"):
        Stored(tmp_path).run(lambda to: to.get("a", "file", "1"))


def test_a_database_that_fails_is_said_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(DatabaseFailed, match="can't be read or written now"):
        Stored(tmp_path / "file").run(lambda to: to.get("a", "file", "1"))


def test_the_folder_is_the_users_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert folder_of("", "org/model") == Path("/state/llmk/org%2Fmodel")
    monkeypatch.delenv("XDG_STATE_HOME")
    assert folder_of("", "m") == Path.home() / ".local/state/llmk/m"
    assert folder_of("/elsewhere", "m") == Path("/elsewhere")


def test_servers_that_store_nothing_import_nothing() -> None:
    code = "import sys, llmk.serve.server, llmk.serve.storage.store\nassert 'sqlalchemy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)

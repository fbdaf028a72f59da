"""Memory of bodies is returned to the system."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from llmk.engine.device.heap import find_trim
from llmk.serve.http import heap
from llmk.serve.http.heap import HeapTrimmer


def test_it_is_returned_once_for_all_that_ended_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "SECONDS", 0.05)
    calls: list[int] = []

    async def returned(times: int) -> bool:
        async with asyncio.timeout(30):
            while len(calls) < times:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        return len(calls) == times

    async def scenario() -> None:
        trimmer = HeapTrimmer(lambda: calls.append(1))
        trimmer.freed(heap.LEAST - 1)
        assert await returned(0), "it is not worth it"
        for _ in range(5):
            trimmer.freed(heap.LEAST)
        assert await returned(1)
        trimmer.freed(heap.LEAST)
        assert await returned(2)

    asyncio.run(scenario())


@pytest.mark.skipif(find_trim() is None, reason="this C library has no malloc_trim")
def test_the_memory_between_what_is_in_use_is_returned() -> None:
    program = """
import psutil
from llmk.engine.device.heap import find_trim
resident = lambda: psutil.Process().memory_info().rss
before = resident()
blocks = [b"x" * (60_000 if number % 10 else 600) for number in range(5000)]
kept = blocks[::10]
most = resident() - before
del blocks
find_trim()()
assert most > 200 << 20, most
assert resident() - before < most // 4, (most, resident() - before)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)

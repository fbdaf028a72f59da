"""Answers of several prompts as one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from llmk.serve.generation.choice_deltas import READY, merged


def test_streams_are_not_taken_from_ahead_of_who_reads() -> None:
    taken = [0, 0, 0]

    async def stream(number: int) -> AsyncGenerator[int, None]:
        for _ in range(1000):
            yield 1000
            taken[number] += 1
        if number == 2:
            raise ValueError("at the end")

    async def main() -> None:
        async with aclosing(merged(stream, 3, lambda number, item: (number, item), int)) as items:
            await anext(items)
            for _ in range(10_000):
                await asyncio.sleep(0)
            assert sum(taken) * 1000 <= READY + 3000
            with pytest.raises(ValueError, match="at the end"):
                async for _ in items:
                    pass
        assert taken[2] == 1000

    asyncio.run(main())

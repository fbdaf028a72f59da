"""Clients take turns on the event loop, and metrics cost it little however often somebody wants them."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from scripted import ScriptedEngine

from llmk.serve.http.turns import Turns
from llmk.serve.metrics.prometheus import Metrics


async def ask(turns: Turns, client: str, order: list[str]) -> None:
    await turns.take(client)
    order.append(client)


def test_one_request_of_each_client_starts_at_a_time() -> None:
    async def scenario() -> None:
        turns, order = Turns(), list[str]()
        flood = [asyncio.create_task(ask(turns, "flood", order)) for _ in range(100)]
        await asyncio.sleep(0)
        assert order == ["flood"]
        await ask(turns, "quiet", order)
        assert len(order) <= 3
        await asyncio.gather(*flood)
        assert order.count("flood") == 100
        await asyncio.sleep(0.01)
        assert turns._waiting == {}

    asyncio.run(scenario())


def test_requests_that_are_cancelled_hold_no_turn() -> None:
    async def scenario() -> None:
        turns, order = Turns(), list[str]()
        tasks = [asyncio.create_task(ask(turns, "flood", order)) for _ in range(100)]
        await asyncio.sleep(0)
        for task in tasks[1:99]:
            task.cancel()
        await asyncio.wait_for(tasks[99], 10)
        assert order == ["flood"] * 2

    asyncio.run(scenario())


def test_metrics_are_fresh_and_rendered_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered = []

    def render(registry: CollectorRegistry) -> bytes:
        rendered.append(registry)
        return generate_latest(registry)

    monkeypatch.setattr("llmk.serve.metrics.prometheus.generate_latest", render)

    async def scenario() -> None:
        metrics = Metrics(ScriptedEngine())  # type: ignore[arg-type]
        for count in range(1, 4):
            metrics.http_requests.labels("GET", "/health", "200").inc()
            texts = await asyncio.gather(*[metrics.render() for _ in range(50)])
            assert all(f'status="200"}} {count}.0' in text.decode() for text in texts)
        assert len(rendered) == 3

    asyncio.run(scenario())


def test_who_leaves_while_metrics_are_awaited_disturbs_no_other() -> None:
    async def scenario() -> None:
        metrics = Metrics(ScriptedEngine())  # type: ignore[arg-type]
        await metrics.render()
        gone, stays = asyncio.create_task(metrics.render()), asyncio.create_task(metrics.render())
        await asyncio.sleep(0)
        gone.cancel()
        assert b"llmk_" in await stays

    asyncio.run(scenario())

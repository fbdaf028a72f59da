"""The plugin module of ``llmk-bench``: the actions of ``llmk bench``."""

from __future__ import annotations

from collections.abc import Iterable

from llmk.api import CommandSpec, hookimpl


@hookimpl
def llmk_commands() -> Iterable[CommandSpec]:
    """``llmk bench serve``, ``throughput``, ``latency`` and ``startup``."""
    return [
        CommandSpec(
            id="bench.serve",
            name="bench serve",
            implementation="llmk_bench.serve_command:ServeCommand",
            summary="load an OpenAI-compatible server, and measure what its users feel",
        ),
        CommandSpec(
            id="bench.throughput",
            name="bench throughput",
            implementation="llmk_bench.offline:ThroughputCommand",
            summary="tokens per second of a model in this process, all requests at once",
        ),
        CommandSpec(
            id="bench.latency",
            name="bench latency",
            implementation="llmk_bench.offline:LatencyCommand",
            summary="time of one batch of a model in this process, and per token",
        ),
        CommandSpec(
            id="bench.startup",
            name="bench startup",
            implementation="llmk_bench.startup:StartupCommand",
            summary="time from the launch of llmk serve to the first token",
        ),
    ]

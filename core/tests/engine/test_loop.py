"""The engine's loop and what runs its steps: checked at every ping, and closed in the end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from paged_device import make_core

from llmk.api import EngineDead
from llmk.engine.processes.engine_loop import Close, Command, Failed, Ping, Pong, Ready, Reply, run_engine
from llmk.engine.wire.engine_info import EngineInfo

INFO = EngineInfo(max_model_len=64, vocab_size=100, block_size=4, num_blocks=32, plan={})


@pytest.mark.parametrize("gone", [False, True])
def test_a_ping_reports_whether_the_runner_is_alive(gone: bool) -> None:
    core: Any = make_core()
    closed: list[bool] = []
    sent: list[Reply] = []

    def check() -> None:
        if gone:
            raise EngineDead("process 1 was killed")

    def receive(*, wait: bool) -> Iterator[Command]:
        yield Ping(7)
        yield Close()

    core.runner.check, core.runner.close = check, lambda: closed.append(True)
    assert run_engine(lambda: (core, INFO), receive, sent.append) is not gone
    assert closed == [True]
    assert isinstance(sent[0], Ready)
    assert isinstance(sent[1], Failed if gone else Pong)
    if isinstance(sent[1], Failed):
        assert isinstance(sent[1].failure.error(), EngineDead)

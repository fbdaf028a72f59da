"""One engine of those that a supervisor has, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from llmk.engine.processes.client import EngineClient
from llmk.engine.processes.output_queue import Cause, OutputSink
from llmk.engine.wire.engine_info import EngineInfo
from llmk.engine.wire.request import EngineOutputs


class ForwardingClient(EngineClient, Protocol):
    """A client of one engine, whose outputs another one may take."""

    def forward(self, sink: OutputSink) -> None:
        """Has ``sink`` get all outputs."""
        ...


@dataclass(slots=True)
class LiveEngine:
    """Passes on the outputs of one engine until it is dead."""

    take: Callable[[EngineOutputs], None]
    lose: Callable[[Cause], None]
    dead: bool = False

    def put(self, outputs: EngineOutputs) -> None:
        if not self.dead:
            self.take(outputs)

    def end(self, cause: Cause) -> None:
        self.dead = True
        self.lose(cause)


def changes_of(old: EngineInfo, new: EngineInfo) -> Iterable[str]:
    """What is not as it was, for the log."""
    for name in ("max_model_len", "vocab_size", "block_size", "num_blocks", "logits_processors", "grammars", "head"):
        if getattr(old, name) != getattr(new, name):
            yield f"; {name} is {getattr(new, name)}, was {getattr(old, name)}"
    if old.plan != new.plan:
        yield f"; its plan is {new.plan.get('fingerprint')}, was {old.plan.get('fingerprint')}"

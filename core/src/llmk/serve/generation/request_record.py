"""What becomes known of a request while it is answered."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.types import Scope

if TYPE_CHECKING:
    from llmk.engine.text.output_processor import SequenceTimes
    from llmk.serve.generation.event_stream import Job, Usage


@dataclass(slots=True)
class RequestRecord:
    """A request, its ASGI ``scope``, and what came of it.

    Attributes:
        arrived, first, ended: when it came, had its first token, and was done, by :func:`time.monotonic`; 0: it didn't.
        arrived_ns: when it came, in nanoseconds since 1970.
        last: when each choice had its last token.
        reasons: why each choice ended.
        times: of the choices that ended by themselves.
        error: what the request failed with, or how it was ended before it was done.
    """

    job: Job
    usage: Usage
    scope: Scope
    arrived: float = field(default_factory=time.monotonic)
    arrived_ns: int = field(default_factory=time.time_ns)
    first: float = 0.0
    ended: float = 0.0
    last: dict[int, float] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    times: list[SequenceTimes] = field(default_factory=list)
    error: BaseException | None = None

"""The record of a request, for metrics and spans."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.types import Scope

if TYPE_CHECKING:
    from llmk.engine.text.output_processor import SequenceTimes
    from llmk.serve.generation.choice_deltas import Job, Usage


@dataclass(slots=True)
class RequestRecord:
    """A request, its ASGI ``scope``, times and results.

    Attributes:
        arrived, first, ended: times of arrival, of the first token, and of the end, by :func:`time.monotonic`; 0:
        never. arrived_ns: time of arrival, in nanoseconds since 1970.
        last: time of the last token of each choice.
        reasons: finish reason of each choice.
        times: times of the choices that finished.
        error: the exception with which the request failed or was aborted.
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

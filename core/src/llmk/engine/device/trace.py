"""What the host and the device do in each step, as a trace for Perfetto and Chrome.

The engine binds its parts through a recorder when it is built. The usual one, :data:`NULL_TRACE`, hands them back as
they are, so that not recording costs nothing.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from llmk.api import ConfigError
from llmk.engine.wire.step import StepPlan

if TYPE_CHECKING:
    import torch

P = ParamSpec("P")
T = TypeVar("T")

HOST_WORK = ("schedule", "submit", "fill masks", "update")
"""What the host does for each step, besides waiting for it."""
_PROCESS = 1
_LANES = {"host": 1, "device": 2}


class NullTrace:
    """Records nothing."""

    def timed(self, name: str, part: Callable[P, T]) -> Callable[P, T]:
        """``part``, recorded in the host's lane under ``name``."""
        return part

    def submitting(self, submit: Callable[[StepPlan], T]) -> Callable[[StepPlan], T]:
        """The same for what submits a step, whose sizes are recorded with it."""
        return submit

    def on_device(self, device: torch.device, run: Callable[[StepPlan], T]) -> Callable[[StepPlan], T]:
        """``run``, which issues a step to ``device``, recorded in the device's lane from its first to its last work."""
        return run


NULL_TRACE = NullTrace()


@dataclass(frozen=True, slots=True)
class Span:
    """Something that was done, from ``start`` to ``end`` (nanoseconds of :func:`time.perf_counter_ns`), for ``step``;
    -1: for none."""

    name: str
    start: int
    end: int
    step: int

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.end - self.start) / 1e9


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a step computes. A request is one of ``decodes`` if it runs already and adds a single token."""

    tokens: int
    samples: int
    prefills: int
    decodes: int

    @classmethod
    def of(cls, plan: StepPlan) -> Sizes:
        """The sizes of a plan."""
        new = {request.slot for request in plan.new}
        decodes = sum(work.num_tokens == 1 and work.sample and work.slot not in new for work in plan.work)
        samples = sum(work.sample for work in plan.work)
        return cls(plan.num_tokens, samples, len(plan.work) - decodes, decodes)


@dataclass(frozen=True, slots=True)
class Summary:
    """A trace in numbers. ``host_*`` are seconds that the host spent on a step besides waiting for the device, or where
    the host itself is the device, besides being it. ``busy_share`` is the device's, ``None`` where its times are not
    known.
    """

    steps: int
    seconds: float
    tokens: int
    output_tokens: int
    host_p50: float
    host_p95: float
    busy_share: float | None

    def lines(self) -> list[str]:
        """A human-readable line."""
        busy = self.busy_share
        shares = "times not known" if busy is None else f"busy {busy:.1%}, idle {1 - busy:.1%}"
        return [
            f"steps      {self.steps} in {self.seconds:.3f} s",
            f"host       {1e3 * self.host_p50:.3f} ms per step (p50), {1e3 * self.host_p95:.3f} ms (p95)",
            f"device     {shares}",
            f"tokens/s   {self.output_tokens / self.seconds:.1f} generated, {self.tokens / self.seconds:.1f} computed",
        ]


class Trace(NullTrace):
    """Records one engine, since it was made or last cleared."""

    def __init__(self) -> None:
        self._host: list[tuple[str, int, int, int]] = []
        self._device: list[tuple[int, Any, Any]] = []
        self._clock: _HostClock | _DeviceClock | None = None
        self.sizes: dict[int, Sizes] = {}

    def clear(self) -> None:
        """Forgets what was recorded."""
        for kept in (self._host, self._device, self.sizes):
            kept.clear()

    def timed(self, name: str, part: Callable[P, T]) -> Callable[P, T]:
        def recorded(*args: P.args, **kwargs: P.kwargs) -> T:
            start = time.perf_counter_ns()
            result = part(*args, **kwargs)
            end = time.perf_counter_ns()
            self._host.append((name, start, end, _step_of(args[0] if args else None, result)))
            return result

        return recorded

    def submitting(self, submit: Callable[[StepPlan], T]) -> Callable[[StepPlan], T]:
        timed = self.timed("submit", submit)

        def recorded(plan: StepPlan) -> T:
            if plan.work:
                self.sizes[plan.step] = Sizes.of(plan)
            return timed(plan)

        return recorded

    def on_device(self, device: torch.device, run: Callable[[StepPlan], T]) -> Callable[[StepPlan], T]:
        clock = self._clock = _clock_of(device)
        if clock is None:
            return run

        def recorded(plan: StepPlan) -> T:
            start = clock.mark()
            result = run(plan)
            if plan.work:
                self._device.append((plan.step, start, clock.mark()))
            return result

        return recorded

    def host(self) -> list[Span]:
        """The host's lane; the parts of a step's submission lie within it."""
        return [Span(*entry) for entry in self._host]

    def device(self) -> list[Span]:
        """The device's lane, one span a step. Waits for the device."""
        clock = self._clock
        if clock is None:
            return []
        return [Span("step", clock.time_of(start), clock.time_of(end), step) for step, start, end in self._device]

    def summary(self) -> Summary:
        """The numbers. Raises ``ValueError`` where no step was recorded."""
        host, device = self.host(), self.device()
        if not self.sizes:
            raise ValueError("no step was recorded")
        spent = dict.fromkeys(self.sizes, 0.0)
        for span in host:
            if span.name in HOST_WORK and span.step in spent:
                spent[span.step] += span.seconds
        for span in device if isinstance(self._clock, _HostClock) else ():
            spent[span.step] -= span.seconds
        seconds = (max(s.end for s in (*host, *device)) - min(s.start for s in (*host, *device))) / 1e9
        times = sorted(spent.values())
        return Summary(
            steps=len(times),
            seconds=seconds,
            tokens=sum(sizes.tokens for sizes in self.sizes.values()),
            output_tokens=sum(sizes.samples for sizes in self.sizes.values()),
            host_p50=statistics.median(times),
            host_p95=times[min(len(times) - 1, int(0.95 * len(times)))],
            busy_share=_busy(device) / seconds if device else None,
        )

    def write(self, file: Path) -> None:
        """Writes the trace in the Trace Event Format, with the summary next to the events. Raises
        :class:`~llmk.api.ConfigError` where the file can't be written."""
        data = {
            "traceEvents": list(self._events()),
            "displayTimeUnit": "ms",
            "otherData": asdict(self.summary()),
        }
        try:
            file.write_text(json.dumps(data))
        except OSError as error:
            raise ConfigError(f"{file} can't be written: {error.strerror}", hint="name another file") from error

    def _events(self) -> Iterator[dict[str, Any]]:
        """Names of process and lanes, then complete events, in microseconds since the first."""
        yield _name("process_name", "llmk")
        for lane, number in _LANES.items():
            yield _name("thread_name", lane, number)
        lanes = {"host": self.host(), "device": self.device()}
        origin = min(span.start for spans in lanes.values() for span in spans)
        for lane, spans in lanes.items():
            for span in spans:
                args = {} if span.step < 0 else {"step": span.step}
                if span.name in ("submit", "step") and span.step in self.sizes:
                    args |= asdict(self.sizes[span.step])
                times = {"ts": (span.start - origin) / 1e3, "dur": (span.end - span.start) / 1e3}
                yield {"name": span.name, "ph": "X", "pid": _PROCESS, "tid": _LANES[lane], **times, "args": args}


class _HostClock:
    """For a device that the host itself is."""

    def mark(self) -> int:
        return time.perf_counter_ns()

    def time_of(self, mark: int) -> int:
        return mark


class _DeviceClock:
    """Events of a device, on the host's time scale."""

    def __init__(self, new_event: Callable[[], torch.Event]) -> None:
        self._new_event = new_event
        self._origin = self.mark()
        self._origin.synchronize()
        self._origin_time = time.perf_counter_ns()

    def mark(self) -> torch.Event:
        event = self._new_event()
        event.record()
        return event

    def time_of(self, mark: torch.Event) -> int:
        mark.synchronize()
        return self._origin_time + round(1e6 * self._origin.elapsed_time(mark))


def _clock_of(device: torch.device) -> _HostClock | _DeviceClock | None:
    """``None`` for a device whose times can't be measured."""
    import torch

    from llmk.engine.device.transfer import has_pinned_memory

    if device.type == "cpu":
        return _HostClock()
    return _DeviceClock(partial(torch.Event, device, enable_timing=True)) if has_pinned_memory(device) else None


def _step_of(*values: object) -> int:
    """The number of the step that the first of ``values`` with such a number is of; -1 where none has one. What an
    attention backend prepares may have a ``step`` of another kind."""
    steps = (getattr(value, "step", None) for value in values)
    return next((step for step in steps if isinstance(step, int)), -1)


def _busy(spans: list[Span]) -> float:
    """Seconds in which at least one of ``spans`` lasts."""
    total, until = 0, 0
    for span in sorted(spans, key=lambda span: span.start):
        total += max(0, span.end - max(span.start, until))
        until = max(until, span.end)
    return total / 1e9


def _name(kind: str, name: str, lane: int = 0) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": _PROCESS, "tid": lane, "args": {"name": name}}

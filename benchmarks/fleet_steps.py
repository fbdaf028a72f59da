"""How long an engine's steps take: measured under load, and fitted to what the simulated fleet needs.

    python benchmarks/fleet_steps.py --shape qwen3-8b --name qwen3-8b-h100       # dummy weights, on the device here
    python benchmarks/fleet_steps.py --model DIR --set platform.threads=1

The engine serves requests of all lengths, one at a time and many. What each step computed is known from what the engine
says of it: how many tokens, and for which requests. :func:`fit` makes a :class:`fleet_device.Device` of that, which is
written to ``benchmarks/fleet_devices``, with how far it is from what was measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from fleet_device import CURVES, FEW, FOLDER, Device, shares

from llmk.config import load
from llmk.engine.processes.client import EngineClient
from llmk.engine.processes.start_engines import start_engine
from llmk.engine.scheduling.async_scheduling import why_asynchronous
from llmk.engine.wire.request import EngineOutputs, EngineRequest, RequestContext
from llmk.engine.wire.sampling_params import SamplingParams
from llmk.planning.boot import boot

DECODES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TOKENS = (16, 64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192)
"""Where curves bend."""
SPREAD = 40
"""Into how many parts steps alike are divided by how long they took."""
ROUNDS, LEAST_ERROR, COMPILED = 8, 0.01, 3.0
LEVELS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Requests at a time."""
PROMPTS, OUTPUTS = (16, 48, 128, 320, 640, 1280), (4, 16, 48, 96)


@dataclass(frozen=True, slots=True)
class Point:
    """A step: sequences that decode, tokens of prompts, tokens of the contexts of all, and how long it took."""

    decodes: int
    prompt: int
    context: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _Sent:
    """When a request was sent, and what each replica had run by then; ``None`` for those that had work."""

    time: float
    ran: dict[int, float | None]


@dataclass(slots=True)
class StepLog:
    """Finds out what each step did, from what was sent and what the engine, or each of several replicas, says."""

    points: list[Point] = field(default_factory=list)
    ways: list[float] = field(default_factory=list)
    """Seconds that requests and their first tokens took beyond steps, of those that were alone on their replica."""
    _lengths: dict[str, int] = field(default_factory=dict)
    _sent: dict[str, _Sent] = field(default_factory=dict)
    """Those that have no token yet."""
    _decoding: dict[str, int] = field(default_factory=dict)
    """Of requests that have a token: the number of their replica."""
    _ended: dict[int, float] = field(default_factory=dict)
    """When the last step of each replica ended."""
    _ran: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds of all its steps."""

    def sent(self, id: str, length: int) -> None:
        """A request was sent."""
        busy = set(self._ran) if self._sent else set(self._decoding.values())
        ran = {replica: None if replica in busy else seconds for replica, seconds in self._ran.items()}
        self._lengths[id], self._sent[id] = length, _Sent(time.monotonic(), ran)

    def take(self, outputs: EngineOutputs) -> None:
        """The outputs of a step, or of none."""
        here = outputs.replica
        if outputs.step is not None:
            decodes = sum(output.id in self._decoding for output in outputs.outputs)
            prompt = max(0, outputs.step.num_tokens - decodes)
            context = sum(length for id, length in self._lengths.items() if self._decoding.get(id, here) == here)
            # While sequences decode, a step takes what it is until the next one ends: what is between two counts too.
            seconds = outputs.time - self._ended[here] if here in self._decoding.values() else outputs.step.seconds
            self.points.append(Point(decodes, prompt, context, seconds))
            self._ended[here] = outputs.time
            self._ran[here] += seconds
        for output in outputs.outputs:
            self._arrived(output.id, here)
            if output.finish_reason is not None:
                del self._lengths[output.id]
                self._decoding.pop(output.id, None)
            else:
                self._lengths[output.id] += len(output.token_ids)
                self._decoding[output.id] = here

    def _arrived(self, id: str, replica: int) -> None:
        """A request has a token, its first if it was sent and has none."""
        sent = self._sent.pop(id, None)
        ran = sent.ran.get(replica) if sent is not None else None
        if sent is not None and ran is not None:
            self.ways.append(max(0.0, time.monotonic() - sent.time - (self._ran[replica] - ran)))


class Meter:
    """Loads an engine."""

    def __init__(self, engine: EngineClient, vocab_size: int, longest: int, seed: int = 0) -> None:
        self.log = StepLog()
        self._engine, self._vocab_size, self._longest = engine, vocab_size, longest
        self._random, self._number = Random(seed), 0

    async def run(self, level: int, seconds: float) -> None:
        """Keeps ``level`` requests running for so long, then waits for their ends."""
        running = set[str]()
        end = time.monotonic() + seconds
        while running or time.monotonic() < end:
            while len(running) < level and time.monotonic() < end:
                running.add(await self._send(self._random.choice(PROMPTS), self._random.choice(OUTPUTS)))
            outputs = await self._next()
            running -= {output.id for output in outputs.outputs if output.finish_reason is not None}

    async def _next(self) -> EngineOutputs:
        outputs = await self._engine.outputs.next()
        self.log.take(outputs)
        for output in outputs.outputs:
            assert not output.error, output.error
        return outputs

    async def _send(self, length: int, output: int) -> str:
        self._number += 1
        id, length = str(self._number), min(length, self._longest - output)
        tokens = [self._random.randrange(3, self._vocab_size) for _ in range(length)]
        params = SamplingParams(max_tokens=output, temperature=0, ignore_eos=True)
        self.log.sent(id, length)
        request = EngineRequest(id=id, context=RequestContext(id), prompt_token_ids=tokens, params=params)
        await self._engine.add([request])
        return id


async def measure(
    engine: EngineClient,
    vocab_size: int,
    longest: int,
    *,
    most: int = LEVELS[-1],
    seconds: float = 3.0,
    replicas: int = 1,
) -> tuple[list[Point], float]:
    """Steps of an engine, for ``seconds`` at each number of requests up to ``most``; and the way to it and back. Of
    several replicas, so many requests for each."""
    levels = [level * replicas for level in LEVELS if level <= most]
    warm = Meter(engine, vocab_size, longest, seed=1)
    for level in levels:
        await warm.run(level, seconds / 3)
    meter = Meter(engine, vocab_size, longest)
    for level in levels:
        await meter.run(level, seconds)
    return meter.log.points, statistics.median(meter.log.ways)


def fit(points: Sequence[Point], *, odd: float = COMPILED, **limits: int) -> tuple[Device, dict[str, float]]:
    """The device whose steps take times nearest to those measured, and how near. ``limits`` are the other fields of
    :class:`Device`. Raises ValueError where too few kinds of steps were measured.

    Its curves are straight between :data:`DECODES` and :data:`TOKENS`, as far as there are steps. Steps alike count as
    one, with their mean, since a queue waits for all of them; but without those that took ``odd`` times the median,
    of which kernels were compiled. Curves are nearest by the sum of relative errors, so that no few kinds of
    steps bend them (least squares, weighted again by what is left), more of what was seen more often.
    """
    kinds: dict[tuple[int, int, int], list[Point]] = defaultdict(list)
    for point in points:
        decodes = point.decodes if point.decodes < 16 else point.decodes // 8 * 8
        kinds[decodes, -(-point.prompt // 64), point.context // 8192].append(point)
    usual = [_usual(each, odd) for each in kinds.values()]
    typical = [_typical(each) for each in usual]
    knots, often = _knots(typical), np.array([len(each) ** 0.5 for each in kinds.values()])
    took = np.array([point.seconds for point in typical])
    rows = np.array([_row(point, knots) for point in typical]) / took[:, None]
    if len(rows) < rows.shape[1]:
        raise ValueError(f"{len(rows)} kinds of steps can't tell {rows.shape[1]} times: measure for longer")
    weights = often
    for _ in range(ROUNDS):
        times = _least_squares(rows, weights)
        weights = often / np.maximum(np.abs(rows @ times - 1), LEAST_ERROR)
    found = [float(f"{each:.4g}") for each in times]
    values = iter(found)
    curves = {
        name: tuple(zip(at, islice(values, len(at)), strict=True)) for name, at in zip(CURVES, knots, strict=True)
    }
    error = np.repeat(np.abs(rows @ times - 1), [len(each) for each in kinds.values()])
    near = {f"error_p{share}": round(float(np.percentile(error, share)), 3) for share in (50, 90)}
    spreads = {f"{name}_spread": _spread(usual, typical, name == "mixed") for name in ("decode", "mixed")}
    device = Device(**curves, **spreads, context=found[-1], **limits)
    return device, {"steps": len(points), "kinds": len(kinds), **near}


def _usual(points: Sequence[Point], odd: float) -> list[Point]:
    """Steps alike, without those in which something was compiled."""
    most = odd * statistics.median(point.seconds for point in points)
    return [point for point in points if point.seconds <= most]


def _typical(points: Sequence[Point]) -> Point:
    """The mean of steps alike."""
    decodes, prompt, context = (
        round(statistics.fmean(values))
        for values in zip(*((one.decodes, one.prompt, one.context) for one in points), strict=True)
    )
    return Point(decodes, prompt, context, statistics.fmean(one.seconds for one in points))


def _spread(kinds: Sequence[Sequence[Point]], typical: Sequence[Point], is_mixed: bool) -> tuple[float, ...]:
    """How much steps differ from the mean of those alike: means of the :data:`SPREAD` equal parts of them, in order."""
    shares = sorted(
        point.seconds / mean.seconds
        for points, mean in zip(kinds, typical, strict=True)
        for point in points
        if bool(point.prompt) is is_mixed
    )
    return tuple(round(float(part.mean()), 3) for part in np.array_split(shares, SPREAD) if len(part)) or (1.0,)


def _knots(points: Sequence[Point]) -> list[tuple[int, ...]]:
    """Those of each curve, as far as there are steps."""
    mixed = [one for one in points if one.prompt]
    few = [one.decodes + one.prompt for one in mixed if one.decodes < FEW[-1]]
    many = [one.decodes + one.prompt for one in mixed if one.decodes > FEW[0]]
    return [_used(DECODES, [one.decodes for one in points if not one.prompt]), _used(TOKENS, few), _used(TOKENS, many)]


def _used(knots: Sequence[int], values: Sequence[int]) -> tuple[int, ...]:
    """Those between which there are values; the last is the largest value."""
    if not values:
        return ()
    first = max(bisect_right(knots, min(values)) - 1, 0)
    return (*knots[first : bisect_left(knots, max(values))], max(values))


def _row(point: Point, knots: Sequence[Sequence[int]]) -> list[float]:
    """What a step's time is a sum of: so much of each value of the curves, and of the time for a token of context."""
    row = [0.0] * sum(map(len, knots)) + [float(point.context)]
    for curve, place, share in shares(knots, point.decodes, point.prompt):
        row[sum(map(len, knots[:curve])) + place] += share
    return row


def _least_squares(rows: np.ndarray[Any, Any], weights: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Of ``rows @ x = 1``; what would be negative is left out."""
    used = list(range(rows.shape[1]))
    roots = np.sqrt(weights)
    while True:
        found = np.linalg.lstsq(rows[:, used] * roots[:, None], roots, rcond=None)[0]
        if (found >= 0).all():
            break
        used.pop(int(found.argmin()))
    whole = np.zeros(rows.shape[1])
    whole[used] = found
    return whole


async def _measured(settings: dict[str, Any], seconds: float) -> tuple[list[Point], float, dict[str, int]]:
    started = await asyncio.to_thread(boot, load(settings))
    limits = started.settings.config.scheduler
    engine = await start_engine(started, standby=False)
    try:
        info = engine.info
        points, way = await measure(
            engine, info.vocab_size, info.max_model_len, most=limits.max_num_seqs, seconds=seconds
        )
    finally:
        await engine.close()
    most = {"max_seqs": limits.max_num_seqs, "max_tokens": limits.max_num_batched_tokens}
    most["ahead"] = int(bool(why_asynchronous(started.plan.platform)))
    return points, way, {"blocks": info.num_blocks, **most}


def main() -> int:
    """Measures, fits, and writes a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", help="of a checkpoint with random weights, which is not written")
    parser.add_argument("--model", help="instead: a checkpoint")
    parser.add_argument("--name", help="of the file; none: it is printed alone")
    parser.add_argument("--seconds", type=float, default=6.0, help="for each number of requests")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting")
    args = parser.parse_args()
    settings: dict[str, Any] = {"model.path": args.model, "model.max_model_len": 4096}
    with tempfile.TemporaryDirectory() as folder:
        if args.shape:
            sys.path.append(str(Path(__file__).parent / "peers"))
            from make_model import write_checkpoint
            from shapes import SHAPES

            write_checkpoint(SHAPES[args.shape], Path(folder), weights=False)
            settings |= {"model.path": folder, "model.load_format": "dummy"}
        for setting in args.set:
            key, _, value = setting.partition("=")
            settings[key] = json.loads(value) if value[:1] in "tf0123456789[{" else value
        points, way, limits = asyncio.run(_measured(settings, args.seconds))
    device, near = fit(points, **limits)
    text = json.dumps({"device": asdict(device), "fit": {**near, "way_ms": round(1e3 * way, 3)}}, indent=1)
    print(text)
    if args.name:
        (FOLDER / f"{args.name}.json").write_text(f"{text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

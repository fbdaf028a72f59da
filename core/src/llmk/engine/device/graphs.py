"""Steps that are recorded once for each of some shapes, and replayed: the host then issues one thing, however many
kernels there are."""

from __future__ import annotations

import logging
import time
from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from torch import OutOfMemoryError, Tensor

from llmk.engine.device.transfer import to_device

if TYPE_CHECKING:
    from llmk.api import Choice, Graphs, Plan
    from llmk.nn.build import Build

logger = logging.getLogger(__name__)

_NOT_STEPS = ("policy", "router", "launcher")
"""Kinds of choices that are not called in a step."""
_NOT_RECORDED = frozenset(
    {
        *("update_rows", "accept_drafts", "apply_penalties", "apply_bias", "match_suffixes", "allow_tokens"),
        *("apply_mask", "logprobs"),
    }
)
"""Ops that run before or after what is recorded."""

_STEPS = ((2, 4, 2), (4, 16, 4), (16, 32, 8), (32, 128, 16), (128, 256, 32), (256, 512, 64), (512, 1024, 128))
_SIZES = (1, *(size for start, end, step in _STEPS for size in range(start, end, step)), 1024)
_MOST_VERIFYING = 64
"""Requests up to which steps that verify drafts are recorded: with more, devices take longer than issuing does."""
_MIXED_SIZES = (*(size for size in _SIZES if size >= 16), *range(1280, 2049, 256))
"""Tokens of recorded steps with prompts: with more, devices take longer than issuing does."""
_FEW_REQUESTS, _MORE_REQUESTS = 32, 128
_LEAST_FIRST = 64
"""Least tokens of steps with prompts that are recorded before the first request."""
_STEPS_BETWEEN = 128
"""Steps with prompts from one recording to the next, while the device has work: recording takes about ten of them."""


Variant = frozenset[str]
PLAIN, ADAPTERS = Variant(), Variant({"adapters"})
"""Work that steps pay for only where one of their requests needs it."""


class StepShape(NamedTuple):
    """Room of a recorded step: tokens, requests, and sampled rows per request. What a step has less is padded.
    ``variant`` is the work that it has besides."""

    tokens: int
    requests: int
    samples: int = 1
    variant: Variant = PLAIN

    @property
    def decodes(self) -> bool:
        """Whether it is for steps in which each request computes one token."""
        return self.tokens == self.requests


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a recorded step leaves; it holds until the next one runs.

    ``hidden`` has a row per token, all else a row per sample: those of request ``i`` from ``i * samples`` on.
    """

    hidden: Tensor
    logits: Tensor
    token_ids: Tensor
    """int64 ``[requests * samples]``, each row's most likely token. With one sample per request, it already stands
    where the next step reads it."""
    readback: Tensor
    """What is read back of them (:attr:`llmk.engine.sampling.sampler.Sampled.readback`)."""

    def first(self, count: int) -> Recorded:
        """What the first rows are left, where each token has one."""
        return Recorded(self.hidden[:count], self.logits[:count], self.token_ids[:count], self.readback[:count])

    def rows(self, index: Tensor) -> Recorded:
        """Chosen rows (int64) of the samples."""
        return Recorded(self.hidden, self.logits[index], self.token_ids[index], self.readback[index])


Run = Callable[[StepShape, Tensor, Tensor, Tensor], Recorded]
"""Runs a step of a shape, given int64 ``[requests]`` slots, counts of tokens, and counts of sampled rows; padding has a
slot of -1 and counts of 0."""


@dataclass(frozen=True, slots=True)
class _Graph:
    """``inputs`` is int64 ``[3 * requests]``: slots, counts of tokens, and counts of samples, which steps that decode
    don't have, as they equal those of tokens; ``num_calls`` collectives are in it."""

    shape: StepShape
    inputs: Tensor
    num_calls: int
    replay: Callable[[], Recorded]


class StepGraphs:
    """The recorded steps.

    Args:
        run: what is recorded.
        shapes: for which shapes.
        build: of the model, which says where it runs and with which other ranks.
        later: shapes to record by :meth:`record_next`, or when they have long been wanted. None of them decodes.
    """

    def __init__(
        self, graphs: Graphs, run: Run, shapes: Iterable[StepShape], build: Build, later: Iterable[StepShape] = ()
    ) -> None:
        self._graphs = graphs
        self._run = run
        self._device = build.device
        self._parallel = build.parallel
        # The largest first: the others find room in what it leaves.
        made = [self._record(shape) for shape in sorted(shapes, key=_size, reverse=True)]
        self._decoding = {variant: _by_count(made, variant) for variant in {graph.shape.variant for graph in made}}
        self._others = [graph for graph in reversed(made) if not graph.shape.decodes]
        self._later = sorted(later, key=_size)
        self._unrecorded_steps = 0

    def most_decoding(self, variant: Variant = PLAIN) -> int:
        """Requests that a recorded step of a variant has room for in which each computes one token."""
        return len(self._decoding.get(variant, ()))

    def decode(self, slots: list[int], variant: Variant = PLAIN) -> tuple[Tensor, Recorded]:
        """Runs a step of one token for each of ``slots``; returns them, int64 on the device, and the result without
        padding."""
        count = len(slots)
        graph = self._decoding[variant][count - 1]
        padding = graph.shape.requests - count
        graph.inputs.copy_(to_device([*slots, *(-1,) * padding, *(1,) * count, *(0,) * padding], self._device))
        recorded = graph.replay()
        self._parallel.num_calls += graph.num_calls
        return graph.inputs[:count], recorded.first(count)

    def find(self, tokens: int, requests: int, samples: int, variant: Variant = PLAIN) -> _Graph | None:
        """The least of the recorded steps of a variant that has room for so many tokens, requests, and samples per
        request, and is not for decoding alone. ``None`` where there is none, or half of it would be padding."""

        def fits(shape: StepShape) -> bool:
            room = shape.tokens >= tokens and shape.requests >= requests and shape.samples >= samples
            return room and shape.variant == variant and shape.tokens <= 2 * max(tokens, _FEW_REQUESTS)

        found = next((graph for graph in self._others if fits(graph.shape)), None)
        better = next((shape for shape in self._later if fits(shape)), None)
        if better is None or (found is not None and found.shape.tokens <= better.tokens):
            return found
        self._unrecorded_steps += 1
        if self._unrecorded_steps <= _STEPS_BETWEEN:
            return found
        self._unrecorded_steps = 0
        return self._record_later(better)

    def record_next(self) -> int:
        """Records one of the steps that are to be recorded later; returns how many are left. Powers of two come first:
        with these, any step has a recorded one that it fills by half. The largest of them come first."""
        if self._later:
            self._record_later(max(self._later, key=lambda shape: (_is_power(shape.tokens), *_size(shape))))
        return len(self._later)

    def _record_later(self, shape: StepShape) -> _Graph | None:
        self._later.remove(shape)
        start = time.perf_counter()
        try:
            graph = self._record(shape)
        except OutOfMemoryError as error:
            logger.warning("graphs: no more are recorded: %s", error)
            self._later.clear()
            return None
        logger.debug("graphs: steps of %d tokens recorded in %.3f s", shape.tokens, time.perf_counter() - start)
        insort(self._others, graph, key=lambda other: _size(other.shape))
        return graph

    def run(self, graph: _Graph, slots: list[int], counts: list[int], samples: list[int]) -> tuple[Tensor, Recorded]:
        """Runs a step that was found; returns ``slots``, int64 on the device, and the result."""
        none = (0,) * (graph.shape.requests - len(slots))
        values = [*slots, *(-1 for _ in none), *counts, *none, *samples, *none]
        graph.inputs.copy_(to_device(values, self._device))
        recorded = graph.replay()
        self._parallel.num_calls += graph.num_calls
        return graph.inputs[: len(slots)], recorded

    def _record(self, shape: StepShape) -> _Graph:
        lists = 2 if shape.decodes else 3
        inputs = to_device([-1] * shape.requests + [0] * (lists - 1) * shape.requests, self._device)
        slots, counts, *rest = inputs.split(shape.requests)
        num_calls = 0

        def step() -> Recorded:
            nonlocal num_calls
            before = self._parallel.num_calls
            recorded = self._run(shape, slots, counts, rest[0] if rest else counts)
            num_calls = self._parallel.num_calls - before
            return recorded

        replay = self._graphs.capture(step)
        return _Graph(shape, inputs, num_calls, replay)


def _size(shape: StepShape) -> tuple[int, ...]:
    return (*shape[:3], len(shape.variant))


def _is_power(count: int) -> bool:
    return not count & (count - 1)


def _by_count(made: Sequence[_Graph], variant: Variant) -> list[_Graph]:
    """The recorded steps in which 1, 2, … requests decode."""
    sizes = {graph.shape.requests: graph for graph in made if graph.shape.decodes and graph.shape.variant == variant}
    return [sizes[min(size for size in sizes if size >= count)] for count in range(1, max(sizes, default=0) + 1)]


def decoding_shapes(most: int) -> list[StepShape]:
    """Shapes to record of steps in which at most ``most`` requests compute one token each."""
    sizes = [*(size for size in _SIZES if size < most), min(most, _SIZES[-1])]
    return [StepShape(size, size) for size in sizes]


def verifying_shapes(most: int, num_drafts: int) -> list[StepShape]:
    """Shapes to record of steps in which at most ``most`` requests verify up to ``num_drafts`` drafts each."""
    sizes = [shape.requests for shape in decoding_shapes(min(most, _MOST_VERIFYING))]
    powers = {1 << power for power in range(num_drafts.bit_length())}
    samples = sorted(1 + drafts for drafts in powers | {num_drafts} if 0 < drafts <= num_drafts)
    return [StepShape(size * count, size, count) for count in samples for size in sizes]


def mixed_shapes(most: int, most_tokens: int) -> list[StepShape]:
    """Shapes to record of steps with prompt tokens, in which at most ``most`` requests compute at most ``most_tokens``
    tokens. One of the requests computes more than one. Rows of padding are sampled from too, so few requests get a room
    of their own."""
    found = {
        StepShape(tokens, min(count, most, tokens - 1))
        for tokens in {min(size, most_tokens) for size in _MIXED_SIZES} - {1}
        for count in (_FEW_REQUESTS, _MORE_REQUESTS, most)
    }
    return sorted(found)


def is_first(shape: StepShape) -> bool:
    """Whether a step with prompts is to be recorded before the first request: some sizes of few requests, so that the
    first prompts need not wait for the host, and an engine without idle time has any."""
    return _is_power(shape.tokens) and shape.tokens >= _LEAST_FIRST and shape.requests <= _FEW_REQUESTS


def why_not_recorded(plan: Plan, shapes: Sequence[StepShape], wanted: bool = True) -> str:
    """Why steps of such shapes can't be recorded, in words; empty where nothing speaks against it."""
    if not wanted:
        return "engine.graphs"
    choices = [choice for choice in plan.choices if choice.kind not in _NOT_STEPS and choice.op not in _NOT_RECORDED]
    found = dict(pair for shape in shapes for choice in choices for pair in obstacles(choice, *shape[:2]))
    for shadow in plan.shadows:
        if shadow.choice.kind == "attention" or getattr(shadow.choice.query, "attention", None):
            return f"the shadow of {shadow.choice.site} has its own cache, which every step must fill"
    return "; ".join(f"{id} at {site} can't be recorded" for id, site in found.items())


def obstacles(choice: Choice, num_tokens: int, num_requests: int) -> Iterator[tuple[str, str]]:
    """Ids and sites of what was chosen for so many tokens, parts included, and can't be recorded in a step of so many
    requests."""
    piece = choice.piece(num_tokens)
    if piece.capture == "none" or (piece.capture == "decode" and num_tokens != num_requests):
        yield piece.id, choice.site
    for part in choice.parts:
        if part.op in piece.parts:
            yield from obstacles(part, num_tokens, num_requests)

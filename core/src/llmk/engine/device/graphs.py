"""Steps in which every request computes one token, recorded once for each of some numbers of requests, and replayed:
the host then issues one thing, however many kernels there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from llmk.engine.device.transfer import to_device

if TYPE_CHECKING:
    from llmk.api import Choice, Graphs, Plan
    from llmk.nn.build import Build

_NOT_RECORDED = frozenset(
    {"update_rows", "apply_penalties", "apply_bias", "match_suffixes", "allow_tokens", "logprobs"}
)
"""Ops that run before or after what is recorded."""

_SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512)


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a recorded step leaves, a row per request; it holds until the next one runs."""

    hidden: Tensor
    logits: Tensor
    token_ids: Tensor
    """int64 ``[requests]``, each request's most likely next token, which already stands where the next step reads
    it."""
    readback: Tensor
    """What is read back of them (:attr:`llmk.engine.sampling.sampler.Sampled.readback`)."""

    def first(self, count: int) -> Decoded:
        """What the first requests are left."""
        return Decoded(self.hidden[:count], self.logits[:count], self.token_ids[:count], self.readback[:count])


@dataclass(frozen=True, slots=True)
class _Graph:
    """``inputs`` is int64 ``[2 * size]``: slots, then counts; ``num_calls`` collectives are in it."""

    size: int
    inputs: Tensor
    num_calls: int
    replay: Callable[[], Decoded]


class DecodeGraphs:
    """The recorded steps.

    Args:
        decode: runs such a step, given int64 ``[size]`` slots and counts; padding has a slot of -1 and a count of 0.
        sizes: numbers of requests to record it for.
        build: of the model, which says where it runs and with which other ranks.
    """

    def __init__(
        self, graphs: Graphs, decode: Callable[[Tensor, Tensor], Decoded], sizes: Sequence[int], build: Build
    ) -> None:
        self._device = build.device
        self._parallel = build.parallel
        # The largest first: the others find room in what it leaves.
        by_size = {size: self._record(graphs, decode, size) for size in sorted(sizes, reverse=True)}
        largest = max(sizes)
        self._fitting = [by_size[min(size for size in sizes if size >= count)] for count in range(1, largest + 1)]

    @property
    def largest(self) -> int:
        """Requests that a recorded step has room for."""
        return len(self._fitting)

    def replay(self, slots: list[int]) -> tuple[Tensor, Decoded]:
        """Runs the step for ``slots``; returns them, int64 on the device, and the result without padding."""
        count = len(slots)
        graph = self._fitting[count - 1]
        padding = graph.size - count
        graph.inputs.copy_(to_device([*slots, *(-1,) * padding, *(1,) * count, *(0,) * padding], self._device))
        decoded = graph.replay()
        self._parallel.num_calls += graph.num_calls
        return graph.inputs[:count], decoded.first(count)

    def _record(self, graphs: Graphs, decode: Callable[[Tensor, Tensor], Decoded], size: int) -> _Graph:
        inputs = to_device([-1] * size + [0] * size, self._device)
        slots, counts = inputs.split(size)
        num_calls = 0

        def run() -> Decoded:
            nonlocal num_calls
            before = self._parallel.num_calls
            decoded = decode(slots, counts)
            num_calls = self._parallel.num_calls - before
            return decoded

        replay = graphs.capture(run)
        return _Graph(size, inputs, num_calls, replay)


def graph_sizes(most: int) -> list[int]:
    """Numbers of requests to record steps for, where ``most`` may run at once."""
    return [*(size for size in _SIZES if size < most), min(most, _SIZES[-1])]


def why_not_recorded(plan: Plan, sizes: Sequence[int], wanted: bool = True) -> str:
    """Why steps of so many tokens can't be recorded, in words; empty where nothing speaks against it."""
    if not wanted:
        return "engine.graphs"
    if plan.pipeline > 1:
        return "layers are spread over stages"
    choices = [choice for choice in plan.choices if choice.kind != "policy" and choice.op not in _NOT_RECORDED]
    found = dict(pair for size in sizes for choice in choices for pair in obstacles(choice, size))
    for shadow in plan.shadows:
        if shadow.choice.kind == "attention" or getattr(shadow.choice.query, "attention", None):
            return f"the shadow of {shadow.choice.site} has its own cache, which every step must fill"
    return "; ".join(f"{id} at {site} can't be recorded" for id, site in found.items())


def obstacles(choice: Choice, num_tokens: int) -> Iterator[tuple[str, str]]:
    """Ids and sites of what was chosen for so many tokens, parts included, and can't be recorded."""
    piece = choice.piece(num_tokens)
    if piece.capture == "none":
        yield piece.id, choice.site
    for part in choice.parts:
        if part.op in piece.parts:
            yield from obstacles(part, num_tokens)

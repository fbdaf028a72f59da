"""What kernels cost as rows grow: operators, memory of a call, and what stays of calls.

Kernels that declare ``deterministic`` may compute rows one by one, since a library's sums may depend on how many rows
are multiplied at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from llmk.api import AttentionQuery, LinearQuery, MoEQuery, OpQuery
from llmk.api.query import expanded_size
from llmk_testing.candidate import Asked, Candidate
from llmk_testing.case import Case
from llmk_testing.costs import COPIES, MOST_CALLS, check_bytes, check_calls, check_kept, cost_of, rows_within
from llmk_testing.op_under_test import Make, Op
from llmk_testing.paged import Paged, Work, decode, history
from llmk_testing.suites.prepared import Layer, first_of_each
from llmk_testing.trees import tensors

_CALLS, _KEPT = "rows are computed together", "forgets its calls"
_BYTES = "memory of a call is in proportion to its rows"
_LATER = 1.5
"""Operators for each further token of a prompt: fewer are for tiles of queries and keys, more for tokens."""
_CHUNKS = (64, 192)
"""Tokens of a prompt's chunk."""
_SMALL_CACHE, _LARGE_CACHE = 64, 2048
"""Blocks of caches."""
_SHARE = 16
"""Part of the larger cache that a step may allocate."""
_TIMES = 4
"""How many times the operators and memory of its reference an op may take."""


def linear_cases(candidate: Candidate[LinearQuery], make: Callable[..., Layer]) -> Iterator[Case]:
    """Of the first query of each weight format."""

    def elements(query: LinearQuery) -> float:
        return query.in_features + query.out_features

    for asked in first_of_each(candidate.served):
        yield from _layer_cases(candidate, partial(make, candidate, asked), asked, elements(asked.query), 64)


def moe_cases(candidate: Candidate[MoEQuery], make: Callable[..., Layer]) -> Iterator[Case]:
    """Of so many tokens that all experts have some."""
    for asked in first_of_each(candidate.served):
        query = asked.query
        chosen = query.top_k * (expanded_size(query) + query.intermediate_size + 2 * query.hidden_size)
        elements, few = chosen + 2 * query.hidden_size + query.num_experts, 8 * query.num_experts // query.top_k
        yield from _layer_cases(candidate, partial(make, candidate, asked), asked, elements, max(64, few))


def _layer_cases(
    candidate: Candidate[Any], make: Callable[[], Layer], asked: Asked[Any], elements: float, few: int
) -> Iterator[Case]:
    """``elements``: those that a row needs, with what it has on the way."""

    def inputs(layer: Layer, count: int) -> tuple[Tensor, ...]:
        return tuple(tensor.to(candidate.bench.device) for tensor in layer.inputs(count))

    rows = rows_within(candidate.spec.bands, few)

    def together(rows: tuple[int, int]) -> str:
        layer = make()
        given = {count: inputs(layer, count) for count in rows}
        return check_calls(lambda count: layer(*given[count]), rows, "rows")

    def memory(rows: tuple[int, int]) -> str:
        layer = make()
        given = {count: inputs(layer, count) for count in rows}
        return check_bytes(lambda count: layer(*given[count]), rows, "rows", COPIES * elements)

    def forgets() -> str:
        layer = make()
        band = candidate.spec.bands[-1]
        return check_kept(lambda number: layer(*inputs(layer, _of_band(band, number))), "calls")

    if rows and not candidate.spec.deterministic:
        yield candidate.case(f"{_CALLS}: {asked.label}", partial(together, rows))
    if rows:
        yield candidate.case(f"{_BYTES}: {asked.label}", partial(memory, rows))
    yield candidate.case(f"{_KEPT}: {asked.label}", forgets)


def _of_band(band: Any, number: int) -> int:
    """A number of rows that the band has, another one for each ``number`` as long as there are."""
    return int(band.start + number % min(band.stop - band.start, 1 << 12))


def op_cases(
    candidate: Candidate[OpQuery], make: Make, served: Sequence[Asked[OpQuery]], *, by_row: bool, one_by_one: bool
) -> Iterator[Case]:
    """``by_row``: whether it has rows. ``one_by_one``: whether it may compute them so, as it may
    where its reference does."""

    def placed(op: Op, count: int) -> tuple[Any, ...]:
        return op.placed(op.arguments(count))

    rows = rows_within(candidate.spec.bands)

    def together(asked: Asked[OpQuery], rows: tuple[int, int]) -> str:
        op = make(asked)
        given = {count: op.arguments(count) for count in rows}
        own = [cost_of(partial(op.by_reference, given[count])).calls for count in rows]
        most = max(MOST_CALLS, _TIMES * (own[1] - own[0]) / (rows[1] - rows[0]))
        on_device = {count: op.placed(given[count]) for count in rows}
        return check_calls(lambda count: op.run(*on_device[count], **op.on_device), rows, "rows", most)

    def memory(asked: Asked[OpQuery], rows: tuple[int, int]) -> str:
        op = make(asked)
        given = {count: op.arguments(count) for count in rows}
        own = [cost_of(partial(op.by_reference, given[count])).total for count in rows]
        elements = [sum(each.numel() for each in tensors(given[count])) for count in rows]
        span = rows[1] - rows[0]
        each = max(COPIES * (elements[1] - elements[0]) / span, _TIMES * (own[1] - own[0]) / span)
        on_device = {count: op.placed(given[count]) for count in rows}
        return check_bytes(lambda count: op.run(*on_device[count], **op.on_device), rows, "rows", each)

    def forgets(asked: Asked[OpQuery]) -> str:
        op, band = make(asked), candidate.spec.bands[-1]
        return check_kept(lambda number: op.run(*placed(op, _of_band(band, number)), **op.on_device), "calls")

    for asked in served:
        yield candidate.case(f"{_KEPT}: {asked.label}", partial(forgets, asked))
        if rows and by_row:
            yield candidate.case(f"{_BYTES}: {asked.label}", partial(memory, asked, rows))
            if not one_by_one:
                yield candidate.case(f"{_CALLS}: {asked.label}", partial(together, asked, rows))


def attention_cases(paged: Callable[..., Paged]) -> dict[str, Callable[..., str | None]]:
    """By name, what holds of a backend and a query."""

    def together(candidate: Candidate[AttentionQuery], asked: Asked[AttentionQuery]) -> str:
        """Chunks of a prompt that end where the other ends, so that both see equally many keys."""
        if candidate.spec.deterministic:
            return "it is deterministic, so it may compute tokens one by one"
        longest = _CHUNKS[-1]
        one = paged(candidate, asked, requests=1, longest=longest)
        one.write(history(longest))

        def run(count: int) -> object:
            return one.play([(0, longest - count, longest)])

        return check_calls(run, _CHUNKS, "tokens of a prompt", _LATER)

    def memory(candidate: Candidate[AttentionQuery], asked: Asked[AttentionQuery]) -> str:
        """The same steps in a small and in a large cache."""
        steps: list[Work] = [history(20, 5, 33), decode(20, 5, 33)]
        found = []
        for blocks in (_SMALL_CACHE, _LARGE_CACHE):
            one = paged(candidate, asked, requests=3, longest=64, blocks=blocks)
            for work in steps:
                one.play(work)
            found.append(sum(cost_of(partial(one.play, work)).total for work in steps))
        size = one.cache.nbytes
        more = found[1] - found[0]
        assert more <= size / _SHARE, (
            f"the same steps allocate {found[0]:,} bytes in a cache of {_SMALL_CACHE} blocks, and {more:,} more in one"
            f" of {_LARGE_CACHE}, which takes {size:,}: only the blocks of a step's sequences are its own"
        )
        return f"{found[0]:,} bytes, {more:,} more in a large cache"

    def forgets(candidate: Candidate[AttentionQuery], asked: Asked[AttentionQuery]) -> str:
        """Sequences that grow, in steps of one and of several tokens."""
        one = paged(candidate, asked, requests=2, longest=1300)

        def act(number: int) -> None:
            one.play([(0, number, number + 1), (1, 2 * number, 2 * number + 2)])

        return check_kept(act, "steps")

    return {
        "tokens of a prompt are computed together": together,
        "a step allocates as much in a large cache as in a small one": memory,
        "forgets its steps": forgets,
    }

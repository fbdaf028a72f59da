"""The suite of speculators that draft by heads of the model (:class:`llmk.api.HeadSpeculator`), with made-up heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from llmk_testing.bench import Bench
from llmk_testing.drafting import MAX_DRAFTS, VOCAB
from llmk_testing.knowing_heads import KnowingHeads, KnownRows, states, token_of
from llmk_testing.watch import never_waiting

Make = Callable[[], Any]
Check = Callable[[Make], str | None]

HIDDEN = 12
COUNTS = (5, 3, 3, 1)
"""Drafts that are wanted of the requests of a batch."""
_LENGTHS = (7, 1, 4, 2)
"""Tokens of the requests of a step."""


@dataclass(frozen=True)
class MadeUpRows:
    """Rows: the request of each, and its position."""

    places: tuple[tuple[int, int], ...]


class MadeUpHeads:
    """Follows ``llmk.api.DraftHeads``: each head is a random function of its inputs. They compute in float64, so that
    drafts don't depend on the number of rows.

    Attributes:
        seen: of each head, the places that it has computed.
    """

    def __init__(self, count: int, device: torch.device, counts: Sequence[int] = COUNTS) -> None:
        draw = torch.Generator().manual_seed(count)

        def made(*shape: int) -> Tensor:
            return torch.randn(shape, generator=draw, dtype=torch.float64).to(device)

        self.count = count
        self.seen: list[set[tuple[int, int]]] = [set() for _ in range(count)]
        self._counts = counts
        self._weights = [(made(HIDDEN, HIDDEN), made(VOCAB, HIDDEN)) for _ in range(count)]
        self._logits = made(HIDDEN, VOCAB)

    def __call__(self, head: int, hidden: Tensor, following: Tensor, rows: MadeUpRows) -> Tensor:
        """See :class:`llmk.api.DraftHeads`."""
        assert 0 <= head < self.count, f"head {head} was called, of {self.count}"
        found = hidden.shape[0], following.shape[0], following.dtype
        expected = len(rows.places), len(rows.places), torch.int64
        assert found == expected, f"a head got {found} rows of hidden states and tokens, expected {expected}"
        self.seen[head].update(rows.places)
        own, embed = self._weights[head]
        return torch.tanh(hidden.double() @ own + embed[following])

    def most_likely(self, hidden: Tensor) -> Tensor:
        """See :class:`llmk.api.DraftHeads`."""
        return (hidden.double() @ self._logits).argmax(1)

    def rows(self, count: int, ahead: int) -> MadeUpRows:
        """See :class:`llmk.api.DraftHeads`."""
        assert 1 <= count <= len(self._counts), f"rows of {count} requests were requested, of {len(self._counts)}"
        least = min(self._counts[:count])
        room = f"rows {ahead} ahead were requested of {count} requests, of one of which {least} drafts are wanted"
        assert 0 <= ahead < least, room
        return MadeUpRows(tuple((request, _LENGTHS[request] - 1 + ahead) for request in range(count)))


@dataclass(frozen=True)
class Batch:
    """The tokens of a step, and what the engine keeps of each request."""

    hidden: Tensor
    following: Tensor
    rows: MadeUpRows
    kept: Tensor

    @classmethod
    def of(cls, seed: int, heads: int, device: torch.device) -> Batch:
        """A random one, with as many columns of tokens as there are ``heads``."""
        draw = torch.Generator().manual_seed(seed)
        places = tuple((request, at) for request, length in enumerate(_LENGTHS) for at in range(length))
        hidden = torch.randn(len(places), HIDDEN, generator=draw)
        following = torch.randint(VOCAB, (len(places), heads), generator=draw)
        kept = torch.randn(len(_LENGTHS), HIDDEN, generator=draw)
        return cls(hidden.to(device), following.to(device), MadeUpRows(places), kept.to(device))


def cases(bench: Bench) -> Iterator[tuple[str, Check]]:
    """Names of cases, and what checks them."""
    device = bench.device
    yield "after a step, there is a row per token", partial(check_follow, device)
    yield "heads that draft have seen every token", partial(check_seen, device)
    yield "drafts are int64 of the requests and the greatest count", partial(check_shape, device)
    yield "something is drafted", partial(check_effect, device)
    yield "what heads that are never wrong draft is right", partial(check_knowing, device)
    yield "drafts depend only on the request's hidden state", partial(check_apart, device)
    yield "nothing is kept between calls", partial(check_stateless, device)
    yield "inputs stay as they are", partial(check_arguments, device)
    yield "it never waits for the device", partial(check_waiting, device)


def check_follow(device: torch.device, make: Make) -> None:
    """Of each request, the engine keeps a row that only it knows."""
    for count in (1, 2):
        found = _follow(make(), MadeUpHeads(count, device), Batch.of(1, count, device))
        assert isinstance(found, Tensor), f"follow returned {type(found).__name__}, expected a tensor"
        got = tuple(found.shape), found.dtype.is_floating_point
        expected = (sum(_LENGTHS), HIDDEN), True
        assert got == expected, f"follow returned {got}, expected {expected}"


def check_seen(device: torch.device, make: Make) -> None:
    """Where a head has a cache, its attention reads all positions before."""
    for count in (1, 2):
        speculator, followed, proposing = make(), MadeUpHeads(count, device), MadeUpHeads(count, device)
        batch = Batch.of(2, count, device)
        _follow(speculator, followed, batch)
        _propose(speculator, proposing, batch.kept)
        for head, (before, used) in enumerate(zip(followed.seen, proposing.seen, strict=True)):
            lacking = sorted(set(batch.rows.places) - before)
            assert not (used and lacking), f"head {head} drafts, and has not computed {lacking} of a step"


def check_shape(device: torch.device, make: Make) -> None:
    """For any number of requests, and any counts."""
    for counts in (COUNTS, (1,), (MAX_DRAFTS,), (2, 2), (4, 1, 1)):
        batch = Batch.of(3, 1, device)
        found = _propose(make(), MadeUpHeads(1, device, counts), batch.kept[: len(counts)], counts)
        got = (found.dtype, tuple(found.shape)) if isinstance(found, Tensor) else found
        expected = (torch.int64, (len(counts), counts[0]))
        assert got == expected, f"propose returned {got}, expected {expected}"


def check_effect(device: torch.device, make: Make) -> str:
    """A speculator that drafts nothing is not worth its heads."""
    found = _rows(_propose(make(), MadeUpHeads(1, device), Batch.of(4, 1, device).kept), COUNTS)
    drafted = [sum(draft >= 0 for draft in row) for row in found]
    assert all(drafted), f"of requests that want {COUNTS} drafts, {drafted} were drafted"
    return f"{sum(drafted)} of {sum(COUNTS)} drafts that were wanted"


def check_knowing(device: torch.device, make: Make) -> str:
    """Each head is given the state, the token and the row that belong together; also behind a draft that was rejected,
    where the step's last row is of no use."""
    found = [
        right for count in (1, 2, 3) for rejected in (0, 1) for right in _drafted_right(make, count, rejected, device)
    ]
    assert found, "nothing was drafted"
    return f"{len(found)} drafts"


def _drafted_right(make: Make, count: int, rejected: int, device: torch.device) -> Iterator[int]:
    """Each draft, after a step of which so many last rows were ``rejected``, if a request has more."""
    lasts = [max(0, length - 1 - rejected) for length in _LENGTHS]
    heads = KnowingHeads(count, lasts, COUNTS, device)
    places = tuple((request, at) for request, length in enumerate(_LENGTHS) for at in range(length))
    request, at = torch.tensor(places, device=device).T
    useful = at <= torch.tensor(lasts, device=device)[request]
    index = at[:, None] + 1 + torch.arange(count, device=device)
    known = index <= torch.tensor(lasts, device=device)[request, None] + 1
    following = torch.where(known, token_of(request[:, None], index), VOCAB - 1)
    speculator = make()
    kept = speculator.follow(heads, states(request, at + 1, useful), following, KnownRows(places))
    rows = torch.tensor([places.index((one, last)) for one, last in enumerate(lasts)], device=device)
    drafts = _rows(_propose(speculator, heads, kept[rows]), COUNTS)
    for one, row in enumerate(drafts):
        right = [int(token_of(torch.tensor(one), torch.tensor(lasts[one] + 2 + number))) for number in range(len(row))]
        wrong = [draft != token for draft, token in zip(row, right, strict=True) if draft >= 0]
        what = f"of {count} heads, after {rejected} rejected rows, request {one} got {row}"
        assert not any(wrong), f"{what}, and the heads predict {right}"
        yield from (draft for draft in row if draft >= 0)


def check_apart(device: torch.device, make: Make) -> None:
    """A request gets the drafts among others that it gets alone."""
    for count in (1, 2):
        batch = Batch.of(5, count, device)
        together = _rows(_propose(make(), MadeUpHeads(count, device), batch.kept), COUNTS)
        for request, wanted in enumerate(COUNTS):
            counts, own = (wanted,), batch.kept[request : request + 1]
            (alone,) = _rows(_propose(make(), MadeUpHeads(count, device, counts), own, counts), counts)
            assert together[request] == alone, f"request {request}: {together[request]} among others, {alone} alone"


def check_stateless(device: torch.device, make: Make) -> None:
    """What a request needs from step to step, the engine keeps: slots have other requests at any time."""
    speculator = make()
    for seed in range(3):
        batch = Batch.of(seed, 1, device)
        _follow(speculator, MadeUpHeads(1, device), Batch.of(seed + 9, 1, device))
        found = _rows(_propose(speculator, MadeUpHeads(1, device), batch.kept), COUNTS)
        fresh = _rows(_propose(make(), MadeUpHeads(1, device), batch.kept), COUNTS)
        assert found == fresh, f"after other calls, {found}, and {fresh} of a new instance"


def check_arguments(device: torch.device, make: Make) -> None:
    """They belong to the engine."""
    batch, same = Batch.of(6, 1, device), Batch.of(6, 1, device)
    speculator, heads = make(), MadeUpHeads(1, device)
    speculator.follow(heads, batch.hidden, batch.following, batch.rows)
    speculator.propose(heads, batch.kept, list(COUNTS))
    for name in ("hidden", "following", "kept"):
        assert torch.equal(getattr(batch, name), getattr(same, name)), f"a call changed {name}"


def check_waiting(device: torch.device, make: Make) -> None:
    """The next step is issued while this one runs."""
    speculator, heads, batch = make(), MadeUpHeads(1, device), Batch.of(7, 1, device)
    with never_waiting():
        speculator.follow(heads, batch.hidden, batch.following, batch.rows)
        speculator.propose(heads, batch.kept, list(COUNTS))


def _follow(speculator: Any, heads: MadeUpHeads, batch: Batch) -> Any:
    return speculator.follow(heads, batch.hidden.clone(), batch.following.clone(), batch.rows)


def _propose(speculator: Any, heads: MadeUpHeads | KnowingHeads, kept: Tensor, counts: Sequence[int] = COUNTS) -> Any:
    return speculator.propose(heads, kept.clone(), list(counts))


def _rows(drafts: Tensor, counts: Sequence[int]) -> list[list[int]]:
    """As many drafts as are wanted; -1 for what says that nothing is drafted."""
    kept = torch.where((drafts >= 0) & (drafts < VOCAB), drafts, -1).tolist()
    return [row[:count] for row, count in zip(kept, counts, strict=True)]

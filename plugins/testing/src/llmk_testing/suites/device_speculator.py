"""The suite of speculators on the device (:class:`llmk.api.DeviceSpeculator`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from llmk_testing.bench import Bench
from llmk_testing.costs import check_kept
from llmk_testing.drafting import (
    LONG,
    MANY_IDS,
    MAX_DRAFTS,
    MAX_LEN,
    SILENT,
    SLOTS,
    VOCAB,
    Ask,
    DeviceBatch,
    long_text,
    share,
)
from llmk_testing.recording import check_recorded
from llmk_testing.speculator_examples import Draft
from llmk_testing.watch import never_waiting

Make = Callable[..., Any]
Check = Callable[[Make], str | None]

_LONG = 66_000
"""Tokens of a long text: more than 16 bits count."""


def cases(bench: Bench) -> Iterator[tuple[str, Check]]:
    """Names of cases, and what checks them."""
    seeds = range(bench.seed, bench.seed + (12 if bench.thorough else 3))
    batches = [DeviceBatch(seed, bench.device) for seed in seeds]
    yield "drafts are int64 of the requests and the width", partial(check_shape, batches)
    yield "something is drafted of what repeats", partial(check_device_effect, bench.device)
    yield "places and ids beyond 16 bits count", partial(check_wide, bench.device)
    yield "tokens, lengths and slots stay as they are", partial(check_arguments, batches)
    yield "drafts depend only on the request's tokens", partial(check_rows, batches)
    yield "tokens beyond the known ones are not used", partial(check_beyond, batches)
    yield "padding changes nothing", partial(check_padding, batches)
    yield "nothing is kept between calls", partial(check_stateless, batches)
    yield "it forgets its calls", partial(check_forgets, batches[0])
    yield "nothing waits for the device", partial(check_waiting, batches)
    yield "it can be recorded and replayed", partial(check_replayed, bench)


def check_shape(batches: Sequence[DeviceBatch], make: Make) -> None:
    """For every width and any number of requests. Values are the speculator's own."""
    for batch in batches:
        for width in range(1, MAX_DRAFTS + 1):
            for count in (1, 2, SLOTS):
                batch.propose(make(), range(count), width)


def check_device_effect(device: torch.device, make: Make) -> str:
    """As on the host, of some periods at least."""
    batch = DeviceBatch(0, device)
    periods = torch.tensor([1, 3, 7, 2, 1, 5], device=device)[:, None]
    batch.tokens = (torch.arange(MAX_LEN + 1, device=device) % periods).int()
    batch.known = torch.full_like(batch.known, MAX_LEN - MAX_DRAFTS)
    drafts = batch.propose(make(), range(SLOTS), MAX_DRAFTS)
    assert ((drafts >= 0) & (drafts < VOCAB)).any(), SILENT
    expected = (batch.known[:, None] + torch.arange(MAX_DRAFTS, device=device)) % periods
    return _share_of(drafts, expected, VOCAB)


def check_wide(device: torch.device, make: Make) -> str:
    """A text of 66,000 tokens ends in seven that repeat, which stand nowhere else in it; and ids that differ by
    multiples of 65,536."""
    place = torch.arange(_LONG + 1, device=device)
    looping = 64 + place % 7
    tokens = torch.where(place < _LONG - 300, place * place % 61, looping).int()[None]
    slots, known = torch.zeros(1, dtype=torch.int64, device=device), torch.full((1,), _LONG - MAX_DRAFTS, device=device)
    expected = looping[known[:, None] + torch.arange(MAX_DRAFTS, device=device)]
    said = _share_of(make(max_len=_LONG).propose(tokens, known, slots, MAX_DRAFTS), expected, VOCAB)
    period = torch.arange(MAX_LEN + 1, device=device) % 3 * (1 << 16)
    known = torch.full((1,), MAX_LEN - MAX_DRAFTS, device=device)
    drafts = make(vocab_size=MANY_IDS).propose(period.int()[None], known, slots, MAX_DRAFTS)
    _share_of(drafts, period[known[:, None] + torch.arange(MAX_DRAFTS, device=device)], MANY_IDS)
    return said


def _share_of(drafts: Tensor, expected: Tensor, vocab_size: int) -> str:
    drafted = (drafts >= 0) & (drafts < vocab_size)
    return share(int(((drafts == expected) & drafted).sum()), int(drafted.sum()))


def check_arguments(batches: Sequence[DeviceBatch], make: Make) -> None:
    """They belong to the engine."""
    for batch in batches:
        tokens, known, slots = batch.tokens.clone(), batch.known.clone(), batch.slots.clone()
        make().propose(tokens, known, slots, MAX_DRAFTS)
        assert torch.equal(tokens, batch.tokens), "propose changed tokens"
        assert torch.equal(known, batch.known), "propose changed known"
        assert torch.equal(slots, batch.slots), "propose changed slots"


def check_rows(batches: Sequence[DeviceBatch], make: Make) -> None:
    """A request gets the same drafts alone, with others, in another slot, and in another order."""
    for batch in batches:
        alone = [batch.propose(make(), [number], MAX_DRAFTS)[0] for number in range(SLOTS)]
        speculator = make()
        for other in (batch, batch.moved(1), batch.moved(3)):
            for chosen in (list(range(SLOTS)), list(reversed(range(SLOTS))), [3, 1], [2]):
                for number, row in zip(chosen, other.propose(speculator, chosen, MAX_DRAFTS), strict=True):
                    _same(row, alone[number], f"request {number} among {chosen}", "alone")


def check_beyond(batches: Sequence[DeviceBatch], make: Make) -> None:
    """There are tokens of the slot's former request, and drafts that were rejected."""
    for batch in batches:
        expected = batch.propose(make(), range(SLOTS), MAX_DRAFTS)
        for fill in (0, 1, VOCAB - 1):
            found = batch.filled(fill).propose(make(), range(SLOTS), MAX_DRAFTS)
            for number in range(SLOTS):
                _same(found[number], expected[number], f"request {number}, {fill} beyond its tokens", "other tokens")


def check_padding(batches: Sequence[DeviceBatch], make: Make) -> None:
    """Recorded steps have more rows than requests; those have slot -1 and any length, wherever they stand, and there
    may be no others."""
    for batch in batches:
        expected = batch.propose(make(), range(SLOTS), MAX_DRAFTS)
        for width in (MAX_DRAFTS, 1):
            batch.propose(make(), [], width, padding=4)
        found = batch.propose(make(), range(SLOTS), MAX_DRAFTS, padding=4)
        for number in range(SLOTS):
            _same(found[number], expected[number], f"request {number} before 4 rows of padding", "without")
        found = batch.propose(make(), range(SLOTS), MAX_DRAFTS, padding=4, turned=2)
        for number in range(SLOTS):
            _same(found[number + 2], expected[number], f"request {number} between rows of padding", "without")


def check_stateless(batches: Sequence[DeviceBatch], make: Make) -> None:
    """A step may be issued and never run, and a slot has another request at any time."""
    speculator = make()
    batches[0].propose(speculator, range(SLOTS), 1)
    for batch in batches:
        expected = batch.propose(make(), range(SLOTS), MAX_DRAFTS)
        for width in (MAX_DRAFTS, 2, MAX_DRAFTS):
            found = batch.propose(speculator, range(SLOTS), width)
            for number in range(SLOTS):
                fresh = expected[number] if width == MAX_DRAFTS else batch.propose(make(), range(SLOTS), width)[number]
                _same(found[number], fresh, f"request {number} after calls of other widths", "a new instance")
        first = speculator.propose(batch.tokens, batch.known, batch.slots, MAX_DRAFTS)
        before = first.clone()
        speculator.propose(batch.tokens.flip(0), batch.known, batch.slots, MAX_DRAFTS)
        assert torch.equal(first, before), "the drafts of a call change with the next one"


def check_forgets(batch: DeviceBatch, make: Make) -> str:
    """Nor are tensors kept for each number of rows."""
    speculator = make()

    def act(number: int) -> None:
        slots = torch.full((1 + number % 4000,), -1, device=batch.slots.device)
        speculator.propose(batch.tokens, torch.ones_like(slots), slots, 1)

    return check_kept(act, "calls")


def check_waiting(batches: Sequence[DeviceBatch], make: Make) -> None:
    """The next step is issued while this one runs: no value is read back, and no shape depends on one."""
    for batch in batches:
        speculator = make()
        speculator.propose(batch.tokens, batch.known, batch.slots, MAX_DRAFTS)
        for width in (1, MAX_DRAFTS):
            with never_waiting():
                speculator.propose(batch.tokens, batch.known, batch.slots, width)


def check_replayed(bench: Bench, make: Make) -> str:
    """The same launches for equal shapes, and no synchronization with the device."""
    batches = [DeviceBatch(seed, bench.device) for seed in range(3)]
    speculator, inputs = make(), [one.clone() for one in (batches[0].tokens, batches[0].known, batches[0].slots)]
    expected = [make().propose(batch.tokens, batch.known, batch.slots, MAX_DRAFTS) for batch in batches]

    def load(number: int) -> None:
        batch = batches[number]
        for held, new in zip(inputs, (batch.tokens, batch.known, batch.slots), strict=True):
            held.copy_(new)

    def judge(number: int, found: Tensor) -> float:
        assert torch.equal(found, expected[number]), f"replayed on batch {number}, drafts are not those of a plain call"
        return 0.0

    return check_recorded(bench, lambda: speculator.propose(*inputs, MAX_DRAFTS), load, judge, len(batches))


def _same(found: Tensor, expected: Tensor, what: str, other: str) -> None:
    """Whether two rows have equal drafts; ids outside of the vocabulary all say that nothing is drafted."""
    one, two = (torch.where((row >= 0) & (row < VOCAB), row, -1).tolist() for row in (found, expected))
    assert one == two, f"{what}: {one}, and {two} {other}"


def check_oracle(batches: Sequence[DeviceBatch], make: Make, ask: Ask) -> str:
    """Of the tokens of each request, as the host would see them; long ones, too."""
    calls = 0
    for batch in batches:
        for width in (1, MAX_DRAFTS):
            found = batch.propose(make(), range(SLOTS), width)
            calls += _judge(found, batch.texts(), ask())
    texts = [long_text(number, length) for number, length in enumerate(LONG)]
    tokens = torch.zeros(len(texts), LONG[-1] + 1, dtype=torch.int32, device=batches[0].tokens.device)
    for row, text in zip(tokens, texts, strict=True):
        row[: len(text)] = torch.tensor(text)
    slots, known = torch.arange(len(texts), device=tokens.device), torch.tensor(LONG, device=tokens.device)
    found = make(max_len=LONG[-1]).propose(tokens, known, slots, MAX_DRAFTS)
    calls += _judge(found, texts, ask(max_len=LONG[-1]))
    return f"{calls} requests"


def _judge(found: Tensor, texts: Sequence[list[int]], draft: Draft) -> int:
    for number, (row, tokens) in enumerate(zip(found, texts, strict=True)):
        right = torch.full_like(row, -1)
        drafts = torch.tensor(list(draft(tokens, len(row))), dtype=torch.int64, device=found.device)
        right[: len(drafts)] = drafts
        _same(row, right, f"request {number}, the last of {len(tokens)} tokens {tokens[-MAX_LEN:]}", "of the oracle")
    return len(texts)

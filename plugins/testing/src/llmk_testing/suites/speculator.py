"""The suites of speculators: on the host, on the device, and by heads of the model.

``SpeculatorSpec.examples`` names a sequence of options, each a whole ``[plugin.NAME]`` section with its defaults; a
speculator without examples is tested without options.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from llmk.api import DeviceSpeculator, HeadSpeculator, Speculator, SpeculatorContext, SpeculatorSpec
from llmk.kernel.loader import load_object
from llmk_testing.bench import Bench
from llmk_testing.case import Case
from llmk_testing.drafting import (
    MAX_DRAFTS,
    MAX_LEN,
    SLOTS,
    VOCAB,
    DeviceBatch,
    HostPlay,
    growing,
    histories,
    odd_histories,
)
from llmk_testing.parsers import counted_lines
from llmk_testing.recording import check_recorded
from llmk_testing.suites import head_speculator
from llmk_testing.watch import never_waiting

Make = Callable[[], Any]

GROWTH = 64 << 10
"""Bytes by which memory may grow while requests come and go."""
UNDRAFTED: Mapping[str, list[int]] = {
    "one token": [7],
    "two tokens": [7, 8],
    "given embeddings": [VOCAB] * 20,
    "tokens that never come again": list(range(60)),
}
"""Texts that there is nothing to draft of."""


def cases(spec: SpeculatorSpec, bench: Bench) -> Iterator[Case]:
    """The cases of one speculator."""
    kind = head_speculator.cases if spec.heads else _device_cases if spec.on_device else _host_cases
    for name, check in kind(bench):
        yield Case(spec.id, "speculator", name, partial(_run, spec, check))


def _host_cases(bench: Bench) -> Iterator[tuple[str, Callable[[Make], str | None]]]:
    seeds = range(bench.seed, bench.seed + (30 if bench.thorough else 6))
    yield "drafts are token ids of the vocabulary, as many as wanted or fewer", partial(check_drafts, seeds)
    yield "something is drafted of what repeats", check_effect
    yield "tokens stay as they are", partial(check_tokens, seeds)
    yield "drafts depend only on the request's tokens", partial(check_apart, seeds)
    yield "the same tokens give the same drafts", partial(check_repeatable, seeds)
    yield "a request that resumes elsewhere gets the same drafts", partial(check_resumed, seeds)
    yield "an id that is used again has no old state", partial(check_reuse, seeds)
    yield "state of a request is freed with it", check_leaving
    yield "a call takes time in proportion to the tokens that are new", check_linear


def _device_cases(bench: Bench) -> Iterator[tuple[str, Callable[[Make], str | None]]]:
    seeds = range(bench.seed, bench.seed + (12 if bench.thorough else 3))
    batches = [DeviceBatch(seed, bench.device) for seed in seeds]
    yield "drafts are int64 of the requests and the width", partial(check_shape, batches)
    yield "something is drafted of what repeats", partial(check_device_effect, batches[0])
    yield "tokens, lengths and slots stay as they are", partial(check_arguments, batches)
    yield "drafts depend only on the request's tokens", partial(check_rows, batches)
    yield "tokens beyond the known ones are not used", partial(check_beyond, batches)
    yield "padding changes nothing", partial(check_padding, batches)
    yield "nothing is kept between calls", partial(check_stateless, batches)
    yield "nothing waits for the device", partial(check_waiting, batches)
    yield "it can be recorded and replayed", partial(check_replayed, bench)


def check_drafts(seeds: Sequence[int], make: Make) -> None:
    """Any tokens, also those of prompts with given embeddings, whose id is the vocabulary's size."""
    for seed in seeds:
        play = HostPlay(make())
        for number, tokens in enumerate((*histories(seed, 8), *odd_histories())):
            for known in growing(tokens, seed):
                for most in (1, 2, MAX_DRAFTS):
                    play.propose(f"r{number}", known, most)


def check_effect(make: Make) -> str:
    """A speculator that never drafts, not even where a request repeats itself, is not worth its calls."""
    play, drafted, right = HostPlay(make()), 0, 0
    for number, period in enumerate((1, 3, 7)):
        tokens = [(5 * at * at + number) % VOCAB for at in range(period)] * (60 // period)
        for length in range(40, 50):
            drafts = play.propose(f"r{number}", tokens[:length], MAX_DRAFTS)
            drafted += len(drafts)
            right += sum(one == other for one, other in zip(drafts, tokens[length:], strict=False))
    assert drafted, "nothing was drafted, although the last tokens of each request occurred before"
    return _share(right, drafted)


def check_tokens(seeds: Sequence[int], make: Make) -> None:
    """The tokens belong to the engine."""
    for seed in seeds:
        speculator = make()
        for number, tokens in enumerate(histories(seed, 6)):
            for known in growing(tokens, seed):
                given = list(known)
                speculator.propose(f"r{number}", given, MAX_DRAFTS)
                assert given == known, f"propose changed the tokens {known} to {given}"


def check_apart(seeds: Sequence[int], make: Make) -> None:
    """Requests that run at the same time must not be drafted for by each other's tokens, which may be secret."""
    for seed in seeds:
        texts = {f"r{number}": growing(tokens, seed) for number, tokens in enumerate(histories(seed, 6))}
        alone = {id: _all_drafts(make, id, text) for id, text in texts.items()}
        together, found = HostPlay(make()), {id: list[list[int]]() for id in texts}
        for step in range(max(map(len, texts.values()))):
            for id, text in texts.items():
                if step < len(text):
                    found[id].append(together.propose(id, text[step]))
        for id, drafts in found.items():
            assert drafts == alone[id], f"seed {seed}: among others, {id} got {_first_of(drafts, alone[id])} alone"


def check_repeatable(seeds: Sequence[int], make: Make) -> None:
    """No clock, no generator of the process, no hash of an address, no state shared between instances."""
    for seed in seeds:
        for number, tokens in enumerate(histories(seed, 6)):
            text = growing(tokens, seed)
            first, second = (_all_drafts(make, f"r{number}", text) for _ in range(2))
            assert first == second, f"seed {seed}: in another instance, r{number} got {_first_of(second, first)} before"


def check_resumed(seeds: Sequence[int], make: Make) -> None:
    """Where an engine is restarted, another instance gets all tokens at once."""
    for seed in seeds:
        for tokens in histories(seed, 6):
            play = HostPlay(make())
            for known in growing(tokens, seed):
                drafts, fresh = play.propose("r", known), HostPlay(make()).propose("r", known)
                what = f"seed {seed}, {len(known)} tokens: {drafts}, but {fresh} of an instance that sees them at once"
                assert drafts == fresh, what


def check_reuse(seeds: Sequence[int], make: Make) -> None:
    """Ids are those of clients and may come again."""
    for seed in seeds:
        play = HostPlay(make())
        for tokens in histories(seed, 8):
            drafts = [play.propose("again", known) for known in growing(tokens, seed)]
            fresh = _all_drafts(make, "again", growing(tokens, seed))
            assert drafts == fresh, f"seed {seed}: a used id got {_first_of(drafts, fresh)} of a new instance"
            play.speculator.leave("again")


def check_leaving(make: Make) -> None:
    """Memory must not grow with the number of requests that have ended, also of those that nothing is drafted for."""
    usual = [[number % VOCAB, *text] for number, text in enumerate(histories(1, 40))]
    _check_freed(make(), usual, 400, "")
    for what, text in UNDRAFTED.items():
        _check_freed(make(), [text], 1200, f" of {what}")


def _check_freed(speculator: Any, texts: Sequence[list[int]], more: int, what: str) -> None:
    def serve(first: int, count: int) -> int:
        for number in range(first, first + count):
            speculator.propose(f"request-{number}", list(texts[number % len(texts)]), MAX_DRAFTS)
            speculator.leave(f"request-{number}")
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = serve(0, 100)
        grown = serve(100, more) - before
    finally:
        tracemalloc.stop()
    assert grown <= GROWTH, f"it holds {grown} bytes more after {more} more requests{what} have ended"


def check_linear(make: Make) -> None:
    """Four times as many tokens, one at a time, must take about four times the lines of Python."""
    for period in (1, 5, VOCAB):
        tokens = [(at % period) * 7 % VOCAB for at in range(800)]
        short = counted_lines(partial(_grow, make(), tokens[:200]))
        limit = 6 * short + 2000
        long = counted_lines(partial(_grow, make(), tokens), limit)
        assert long <= limit, f"{short} lines of code for 200 tokens, one by one, become more than {limit} for 800"


def check_shape(batches: Sequence[DeviceBatch], make: Make) -> None:
    """For every width and any number of requests. Values are the speculator's own."""
    for batch in batches:
        for width in range(1, MAX_DRAFTS + 1):
            for count in (1, 2, SLOTS):
                batch.propose(make(), range(count), width)


def check_device_effect(batch: DeviceBatch, make: Make) -> str:
    """As on the host, of some periods at least."""
    batch = DeviceBatch(0, batch.tokens.device)
    periods = torch.tensor([1, 3, 7, 2, 1, 5], device=batch.tokens.device)[:, None]
    batch.tokens = (torch.arange(MAX_LEN + 1, device=periods.device) % periods).int()
    batch.known = torch.full_like(batch.known, MAX_LEN - MAX_DRAFTS)
    drafts = batch.propose(make(), range(SLOTS), MAX_DRAFTS)
    drafted = (drafts >= 0) & (drafts < VOCAB)
    assert drafted.any(), "nothing was drafted, although the last tokens of each request occurred before"
    expected = (batch.known[:, None] + torch.arange(MAX_DRAFTS, device=drafts.device)) % periods
    return _share(int(((drafts == expected) & drafted).sum()), int(drafted.sum()))


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
    """Recorded steps have more rows than requests; those have slot -1 and any length."""
    for batch in batches:
        expected = batch.propose(make(), range(3), MAX_DRAFTS)
        found = batch.propose(make(), [0, 1, 2], MAX_DRAFTS, padding=4)
        for number in range(3):
            _same(found[number], expected[number], f"request {number} before 4 rows of padding", "without")


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


def _run(spec: SpeculatorSpec, check: Callable[[Make], str | None]) -> str | None:
    examples: Sequence[Mapping[str, Any]] = load_object(spec.examples) if spec.examples else ({},)
    good = isinstance(examples, Sequence) and examples and all(isinstance(one, Mapping) for one in examples)
    assert good, f"{spec.examples} is {examples!r}, expected a sequence of options, each a mapping"
    remark = None
    for options in examples:
        context = SpeculatorContext(VOCAB, MAX_DRAFTS, MAX_LEN, options)
        make: Callable[[], Speculator | DeviceSpeculator | HeadSpeculator] = partial(
            load_object(spec.implementation), context
        )
        remark = check(make) or remark
    return remark


def _share(right: int, drafted: int) -> str:
    """A text that did nothing but repeat itself goes on, for those who look at it in the right place."""
    said = f"{right} of {drafted} drafts are what came next"
    assert 2 * right >= drafted, f"{said}, in texts that repeat a few tokens for ever"
    return said


def _all_drafts(make: Make, id: str, text: Sequence[list[int]]) -> list[list[int]]:
    play = HostPlay(make())
    return [play.propose(id, known) for known in text]


def _first_of(found: Sequence[object], expected: Sequence[object]) -> str:
    at = next(at for at, (one, other) in enumerate(zip(found, expected, strict=True)) if one != other)
    return f"{found[at]} in call {at}, and {expected[at]}"


def _grow(speculator: Any, tokens: list[int]) -> None:
    for length in range(1, len(tokens) + 1):
        speculator.propose("r", tokens[:length], MAX_DRAFTS)


def _same(found: Tensor, expected: Tensor, what: str, other: str) -> None:
    """Whether two rows have equal drafts; ids outside of the vocabulary all say that nothing is drafted."""
    one, two = (torch.where((row >= 0) & (row < VOCAB), row, -1).tolist() for row in (found, expected))
    assert one == two, f"{what}: {one}, and {two} {other}"

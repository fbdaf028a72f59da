"""The suite of speculators: here on the host; on the device, and by heads of the model, in modules of their own.

``SpeculatorSpec.examples`` names a :class:`~llmk_testing.speculator_examples.SpeculatorExamples`, or a sequence of
options alone; a speculator without examples is tested without options.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from llmk.api import SpeculatorContext, SpeculatorSpec
from llmk.kernel.loader import load_object
from llmk_testing.bench import Bench
from llmk_testing.case import Case, Skip
from llmk_testing.drafting import (
    LONG,
    MANY_DRAFTS,
    MANY_IDS,
    MAX_DRAFTS,
    MAX_LEN,
    SILENT,
    VOCAB,
    Ask,
    DeviceBatch,
    HostPlay,
    growing,
    histories,
    long_text,
    odd_histories,
    share,
)
from llmk_testing.odd_checkpoints import odd_checkpoints
from llmk_testing.parsers import counted_lines
from llmk_testing.purity import check_pure
from llmk_testing.sections import options_of
from llmk_testing.settings import leaving_settings
from llmk_testing.speculator_examples import Draft, SpeculatorExamples
from llmk_testing.suites import device_speculator, head_speculator

Make = Callable[..., Any]
Check = Callable[[Make], str | None]

_ORACLE = "its drafts are those of its oracle"
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

    def case(name: str, run: Callable[[], str | None]) -> Case:
        return Case(spec.id, "speculator", name, run)

    kind = head_speculator.cases if spec.heads else device_speculator.cases if spec.on_device else _host_cases
    for name, check in kind(bench):
        yield case(name, partial(_run, spec, bench, check))
    seeds = _seeds(bench)
    if spec.on_device:
        batches = [DeviceBatch(seed, bench.device) for seed in seeds]
        yield case(_ORACLE, partial(_check_oracle, spec, bench, partial(device_speculator.check_oracle, batches)))
    elif not spec.heads:
        yield case(_ORACLE, partial(_check_oracle, spec, bench, partial(check_oracle, seeds)))
    yield case("it says which checkpoints it serves, for any", partial(check_pure, spec.supports, odd_checkpoints()))


def _seeds(bench: Bench) -> range:
    return range(bench.seed, bench.seed + (30 if bench.thorough else 6))


def _host_cases(bench: Bench) -> Iterator[tuple[str, Check]]:
    seeds = _seeds(bench)
    yield "drafts are token ids of the vocabulary, as many as wanted or fewer", partial(check_drafts, seeds)
    yield "something is drafted of what repeats", check_effect
    yield "ids beyond 16 bits count", check_many_ids
    yield "tokens stay as they are", partial(check_tokens, seeds)
    yield "drafts depend only on the request's tokens", partial(check_apart, seeds)
    yield "the same tokens give the same drafts", partial(check_repeatable, seeds)
    yield "a request that resumes elsewhere gets the same drafts", partial(check_resumed, seeds)
    yield "a request that is drafted for again gets the same drafts", partial(check_again, seeds)
    yield "an id that is used again has no old state", partial(check_reuse, seeds)
    yield "state of a request is freed with it", check_leaving
    yield "a call takes time in proportion to the tokens that are new", check_linear


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
    texts = [[(5 * at * at + period) % VOCAB for at in range(period)] for period in (1, 3, 7)]
    return _share_of(HostPlay(make()), texts)


def check_many_ids(make: Make) -> str:
    """They differ by multiples of 65,536."""
    play = HostPlay(make(vocab_size=MANY_IDS), MANY_IDS)
    return _share_of(play, [[at << 16 for at in range(period)] for period in (3, 4)])


def _share_of(play: HostPlay, texts: Sequence[list[int]]) -> str:
    """Each of ``texts`` again and again."""
    drafted, right = 0, 0
    for number, text in enumerate(texts):
        tokens = text * (60 // len(text))
        for length in range(40, 50):
            drafts = play.propose(f"r{number}", tokens[:length], MAX_DRAFTS)
            drafted += len(drafts)
            right += sum(one == other for one, other in zip(drafts, tokens[length:], strict=False))
    assert drafted, SILENT
    return share(right, drafted)


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


def check_again(seeds: Sequence[int], make: Make) -> None:
    """A step that drafts were made for need not be carried out, as where its request is preempted. The engine's list is
    the same in each call."""
    for seed in seeds:
        for tokens in histories(seed, 6):
            speculator, given = make(), list[int]()
            for known in growing(tokens, seed):
                given += known[len(given) :]
                fresh = HostPlay(make()).propose("r", known)
                for most in (1, MAX_DRAFTS, MAX_DRAFTS):
                    drafts = list(speculator.propose("r", given, most))
                what = f"seed {seed}, {len(known)} tokens in a list that grows, drafted the third time: {drafts}"
                assert drafts == fresh, f"{what}, but {fresh} of an instance that sees them once"


def check_oracle(seeds: Sequence[int], make: Make, ask: Ask) -> str:
    """For each number of drafts, as requests grow; then many drafts of a long text."""
    calls, draft = 0, ask()
    for seed in seeds:
        play = HostPlay(make())
        for number, tokens in enumerate((*histories(seed, 8), *odd_histories())):
            for known in growing(tokens, seed):
                for most in (1, 2, MAX_DRAFTS):
                    drafts, right = play.propose(f"r{number}", known, most), list(draft(known, most))
                    assert drafts == right, f"{most} drafts at most of {known}: {drafts}, {right} of the oracle"
                    calls += 1
    play, draft = HostPlay(make(max_drafts=MANY_DRAFTS, max_len=LONG[0])), ask(max_drafts=MANY_DRAFTS, max_len=LONG[0])
    for length in (LONG[0] // 3, LONG[0] - 1, LONG[0]):
        known = long_text(seeds[0], LONG[0])[:length]
        drafts, right = play.propose("long", known, MANY_DRAFTS), list(draft(known, MANY_DRAFTS))
        assert drafts == right, f"{MANY_DRAFTS} drafts at most of {len(known)} tokens: {drafts}, {right} of the oracle"
        calls += 1
    return f"{calls} calls"


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


def _run(spec: SpeculatorSpec, bench: Bench, check: Check) -> str | None:
    remark = None
    for options in _options(spec, bench):
        with leaving_settings():
            remark = check(_made(spec, options)) or remark
    return remark


def _options(spec: SpeculatorSpec, bench: Bench) -> Sequence[Mapping[str, Any]]:
    """With the defaults of the plugin's schema."""
    examples = load_object(spec.examples) if spec.examples else ({},)
    options = examples.options if isinstance(examples, SpeculatorExamples) else examples
    good = isinstance(options, Sequence) and options and all(isinstance(one, Mapping) for one in options)
    what = f"expected a sequence of options, each a mapping, or a {SpeculatorExamples.__name__}"
    assert good, f"{spec.examples} is {examples!r}, {what}"
    return [options_of(spec.id, bench, section) for section in options]


def _made(spec: SpeculatorSpec, options: Mapping[str, Any]) -> Make:
    """Makes the speculator, with ``changes`` of its context."""
    implementation = load_object(spec.implementation)

    def make(**changes: int) -> Any:
        return implementation(_context(options, **changes))

    return make


def _context(options: Mapping[str, Any], **changes: int) -> SpeculatorContext:
    usual = {"vocab_size": VOCAB, "max_drafts": MAX_DRAFTS, "max_len": MAX_LEN}
    return SpeculatorContext(**{**usual, **changes}, options=options)


def _check_oracle(spec: SpeculatorSpec, bench: Bench, compare: Callable[[Make, Ask], str]) -> str:
    """For each of the options."""
    examples = load_object(spec.examples) if spec.examples else None
    if not isinstance(examples, SpeculatorExamples):
        raise Skip(f"the spec names no {SpeculatorExamples.__name__}: options and an oracle")
    said = ""
    for options in _options(spec, bench):
        said = compare(_made(spec, options), partial(_asked, examples, options))
    return said


def _asked(examples: SpeculatorExamples, options: Mapping[str, Any], **changes: int) -> Draft:
    return examples.oracle(_context(options, **changes))


def _all_drafts(make: Make, id: str, text: Sequence[list[int]]) -> list[list[int]]:
    play = HostPlay(make())
    return [play.propose(id, known) for known in text]


def _first_of(found: Sequence[object], expected: Sequence[object]) -> str:
    at = next(at for at, (one, other) in enumerate(zip(found, expected, strict=True)) if one != other)
    return f"{found[at]} in call {at}, and {expected[at]}"


def _grow(speculator: Any, tokens: list[int]) -> None:
    for length in range(1, len(tokens) + 1):
        speculator.propose("r", tokens[:length], MAX_DRAFTS)

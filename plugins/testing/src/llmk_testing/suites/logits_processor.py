"""The suite of logits processors: a small batch in which requests start, are preempted, resume and finish.

``LogitsProcessorSpec.examples`` names a sequence of parameters, each as in a request, of which at least two must change
logits differently; or a :class:`~llmk_testing.logits_examples.LogitsExamples`, which has an oracle, too.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor

from llmk.api import LogitsBatch, LogitsProcessor, LogitsProcessorSpec, LogitsRequest, LogitsRows, RequestError
from llmk.api.errors import describe
from llmk.kernel.loader import load_object
from llmk_testing.bench import Bench
from llmk_testing.case import Case, Skip
from llmk_testing.costs import check_calls
from llmk_testing.growth import bytes_kept
from llmk_testing.logits_examples import LogitsExamples, Parameters
from llmk_testing.suites.logits_results import check_long, check_oracle, check_refused, entered
from llmk_testing.suites.logits_values import check_device, check_falsy_values, check_settings, check_whole_numbers
from llmk_testing.watch import never_waiting

SLOTS, MAX_LEN, VOCAB = 8, 64, 131
_FEW_ROWS, _MANY_ROWS = 2, 32
KEPT = 10_000
"""Bytes that may stay in any case."""
TOLERANCE = 1e-5
"""Relative tolerance of float32 logits: in another batch, only the order of summation may differ."""

JUNK: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 1.5, -0.5, 2**31, 2**63, -(2**63) - 1, 2**70, 1e-320, 1e39, 1e308, float("nan")),
    *("", "\x00", "1", "é", "a" * 1000, [], [0], [-1], [2**40], [1.5], ["a"], [[None]], {}, {"": {}}, {"0": 1}),
)


def cases(spec: LogitsProcessorSpec, bench: Bench) -> Iterator[Case]:
    """The cases of one processor."""

    def case(name: str, run: Callable[[Batch, Sequence[Parameters]], str | None]) -> Case:
        return Case(spec.id, "logits_processor", name, partial(_run, spec, bench, name, run))

    yield case("it changes logits by its parameters, to float32 of the same shape", check_effect)
    yield case("a row depends only on its request", check_rows)
    yield case("a row sees the drafts before it, and none behind it", check_drafts)
    yield case("a prompt may have embeddings in place of tokens", check_embeddings)
    yield case("rows that it isn't given stay as they are", check_others)
    yield case("the batch's tokens stay as they are", check_tokens)
    yield case("a reused slot has no old state", check_reuse)
    yield case("a preempted request continues as before", check_return)
    yield case("state of a request is freed with it", check_leaving)
    yield case("odd parameters are taken, or refused with RequestError", check_parameters)
    yield case("apply does not synchronize with the device", check_waiting)
    yield case("rows of a step are computed together", check_together)
    for name, check in (
        ("logits are those of its oracle, over many steps", check_oracle),
        ("logits are those of its oracle, of long texts and of many tokens", check_long),
        ("parameters beyond its ranges are refused", check_refused),
        ("what is empty or 0 is refused where others of its type are", check_falsy_values),
        ("whole numbers are taken where others are, written with a fraction or not", check_whole_numbers),
        ("what it keeps is on the batch's device", check_device),
        ("what the whole process shares stays as it is", check_settings),
    ):
        yield Case(spec.id, "logits_processor", name, partial(_judged, spec, bench, check))


class Batch:
    """A processor bound to the tokens of a batch, and the requests in it."""

    def __init__(self, kind: Callable[[LogitsBatch], LogitsProcessor], device: torch.device, generator: Any) -> None:
        self._kind, self._device, self._generator = kind, device, generator
        self.tokens = torch.randint(VOCAB, (SLOTS, MAX_LEN + 1), generator=generator, dtype=torch.int32).to(device)
        self.history = _history(generator)
        """The tokens of each request by its number, in any slot."""
        self.lengths = [0] * SLOTS
        self.processor = kind(LogitsBatch(self.tokens, VOCAB))

    def fresh(self) -> Batch:
        """A new batch with a new instance, for the same requests."""
        other = Batch(self._kind, self._device, self._generator)
        other.history = self.history
        return other

    def logits(self, rows: int) -> Tensor:
        """Float32 ``[rows, vocab]``, the same for equal rows."""
        drawn = torch.randn(SLOTS, VOCAB, generator=torch.Generator().manual_seed(5))
        return drawn[:rows].to(self._device)

    def enter(self, slot: int, number: int, parameters: Parameters, length: int, prompt: int = 0) -> None:
        """Request ``number`` takes a slot with ``length`` tokens, of which ``prompt`` (0: all) are its prompt."""
        known = self.history[number, :length]
        self.tokens[slot, :length] = known.to(self._device)
        self.lengths[slot] = length
        entry = LogitsRequest(f"request-{number}", known.tolist(), prompt or length, deepcopy(dict(parameters)))
        entered(self.processor, slot, entry)

    def extend(self, slot: int, number: int) -> None:
        """The request's next token is sampled."""
        at = self.lengths[slot]
        self.tokens[slot, at] = self.history[number, at].to(self._device)
        self.lengths[slot] += 1

    def rows(self, slots: Sequence[int], back: Sequence[int] = ()) -> LogitsRows:
        """The rows of slots, each so many tokens before the last one of its slot."""
        known = [self.lengths[slot] - less for slot, less in zip(slots, back or [0] * len(slots), strict=True)]
        index, lengths = (torch.tensor(of) for of in (list(slots), known))
        return LogitsRows(tuple(slots), index.to(self._device), lengths.to(self._device))

    def apply(self, slots: Sequence[int], logits: Tensor | None = None, back: Sequence[int] = ()) -> Tensor:
        """The processed logits of slots; all rows have equal input logits unless they are given."""
        given = self.logits(1).expand(len(slots), VOCAB).clone() if logits is None else logits
        rows = self.rows(slots, back)
        before = rows.index.clone(), rows.lengths.clone()
        out = self.processor.apply(given, rows)
        same = torch.equal(rows.index, before[0]) and torch.equal(rows.lengths, before[1])
        assert same, "apply changed the rows that it was given"
        expected = (len(slots), VOCAB)
        same = isinstance(out, Tensor) and (tuple(out.shape), out.dtype) == (expected, torch.float32)
        found = f"{out.dtype} {tuple(out.shape)}" if isinstance(out, Tensor) else repr(out)
        assert same, f"apply returned {found}, expected torch.float32 {expected}"
        for name, wrong in (
            ("made NaN", out.isnan().any(1)),
            ("made positive infinity", (out == torch.inf).any(1)),
            ("allows no token", (out == -torch.inf).all(1)),
        ):
            assert not wrong.any(), f"apply {name}, in row {_first(wrong)}, of logits that were finite"
        return out.clone()


def check_effect(batch: Batch, examples: Sequence[Parameters]) -> None:
    """Some of the examples must change logits, and differently."""
    made = [_alone(batch, 1, parameters, 20) for parameters in examples]
    plain = batch.logits(1)
    assert not all(torch.equal(out, plain) for out in made), f"logits are not changed for any of {examples}"
    alike = len(examples) > 1 and all(torch.equal(out, made[0]) for out in made)
    assert not alike, f"logits are the same for all of {examples}"


def check_rows(batch: Batch, examples: Sequence[Parameters]) -> None:
    """A request has the same logits alone, with others, in another slot, and in another order."""
    expected = [_alone(batch, number, _pick(examples, number), 3 + 7 * number) for number in range(5)]
    slots = [6, 0, 3, 7, 2]
    for number, slot in enumerate(slots):
        batch.enter(slot, number, _pick(examples, number), 3 + 7 * number)
    for chosen in ([0, 1, 2, 3, 4], [4, 2, 0, 1, 3], [3, 1], [2]):
        together = batch.apply([slots[number] for number in chosen])
        for row, number in zip(together, chosen, strict=True):
            _same(row[None], expected[number], f"request {number} among {chosen}, in slots {slots}")


def check_drafts(batch: Batch, examples: Sequence[Parameters]) -> None:
    """Where drafts are verified, a slot has several rows; each must be as if its tokens were all that there are."""
    slots, back = [5, 5, 5, 2, 2, 2, 2, 0], [4, 1, 0, 3, 2, 1, 0, 0]
    for start in range(len(examples)):
        together = batch.fresh()
        lengths = {5: 20, 2: 33, 0: 7}
        for number, (slot, length) in enumerate(lengths.items()):
            together.enter(slot, 2 * number + 1, _pick(examples, start + number), length - max(back[:7]))
            for _ in range(max(back[:7])):
                together.extend(slot, 2 * number + 1)
        found = together.apply(slots, back=back)
        for row, slot, less in zip(found, slots, back, strict=True):
            number = list(lengths).index(slot)
            prompt = lengths[slot] - max(back[:7])
            alone = _alone(batch, 2 * number + 1, _pick(examples, start + number), lengths[slot] - less, prompt)
            what = f"the row of slot {slot} that has {less} of its drafts behind it"
            _same(row[None], alone, f"{what}, with {_pick(examples, start + number)}")


def check_embeddings(batch: Batch, examples: Sequence[Parameters]) -> None:
    """Their id is that behind the vocabulary's last."""
    for number, places in enumerate((slice(0, 3), slice(2, 6), slice(5, 6), slice(0, 6), slice(1, 6, 2))):
        batch.history[number, places] = VOCAB
    for parameters in examples:
        one = batch.fresh()
        for number in range(5):
            one.enter(number, number, parameters, 6)
        for step in range(3):
            together = one.apply(range(5))
            for number, row in enumerate(together):
                what = f"a prompt of {batch.history[number, :6].tolist()}, where {VOCAB} are embeddings"
                _same(row[None], _alone(batch, number, parameters, 6 + step, 6), f"{what}, with {parameters}")
            for number in range(5):
                one.extend(number, number)


def check_others(batch: Batch, examples: Sequence[Parameters]) -> None:
    """The rows may be part of a larger tensor."""
    batch.enter(4, 1, examples[0], 9)
    whole = batch.logits(1).expand(5, VOCAB).clone()
    before = whole.clone()
    batch.apply([4], whole[2:3])
    for row in (0, 1, 3, 4):
        assert torch.equal(whole[row], before[row]), f"row {row} was changed by apply, which was given row 2"


def check_tokens(batch: Batch, examples: Sequence[Parameters]) -> None:
    """The tokens belong to the engine."""
    for number in range(3):
        batch.enter(number, number, _pick(examples, number), 5)
    before = batch.tokens.clone()
    batch.apply([0, 1, 2])
    batch.processor.leave(1)
    changed = (batch.tokens != before).any(1)
    assert not changed.any(), f"the tokens of slot {_first(changed)} were written to"


def check_reuse(batch: Batch, examples: Sequence[Parameters]) -> None:
    """A reused slot must have no state of its previous request, and others must not be affected."""
    batch.enter(1, 0, examples[0], 30)
    batch.enter(2, 1, examples[-1], 12)
    batch.apply([1, 2])
    neighbour = batch.apply([2])
    batch.processor.leave(1)
    _same(batch.apply([2]), neighbour, "the request in slot 2, after that in slot 1 left")
    # A long text repeats itself in many ways, so that each parameter shows.
    for length in (6, 60):
        for parameters in reversed(examples):
            batch.enter(1, 3, parameters, length)
            what = f"a new request with {parameters} and {length} tokens in a used slot"
            _same(batch.apply([1]), _alone(batch, 3, parameters, length), what)
            batch.processor.leave(1)


def check_return(batch: Batch, examples: Sequence[Parameters]) -> None:
    """As after a preemption: in another slot, with the tokens that it has by then, checked at each length."""
    for parameters in examples:
        stayed, moved = batch.fresh(), batch.fresh()
        for one in (stayed, moved):
            one.enter(0, 2, parameters, 8)
            for _ in range(4):
                one.apply([0])
                one.extend(0, 2)
        moved.processor.leave(0)
        moved.enter(5, 2, parameters, 12, prompt=8)
        for step in range(3):
            what = f"request with {parameters}, {step} tokens after it resumed"
            _same(moved.apply([5]), stayed.apply([0]), what)
            stayed.extend(0, 2)
            moved.extend(5, 2)


def check_leaving(batch: Batch, examples: Sequence[Parameters]) -> None:
    """No request may be referenced after it left."""
    for number in range(24):
        batch.enter(number % SLOTS, number % SLOTS, _pick(examples, number), 8)
        batch.apply([number % SLOTS])
        batch.processor.leave(number % SLOTS)
    gc.collect()
    held = sum(type(thing) is LogitsRequest and thing.id.startswith("request-") for thing in gc.get_objects())
    assert not held, f"it still holds {held} of 24 requests that have left"

    def serve(number: int) -> None:
        slot = number % SLOTS
        request = LogitsRequest(f"sample-{number}", [number % VOCAB] * 3, 3, deepcopy(dict(_pick(examples, number))))
        batch.processor.enter(slot, request)
        if number % 20 == 0:
            batch.lengths[slot] = 3
            batch.apply([slot])
        batch.processor.leave(slot)

    few, many = bytes_kept(serve, (1500, 4500))
    assert many <= 2 * few + KEPT, f"it keeps {few} bytes after 1500 requests have left, and {many} after 4500"


def check_parameters(batch: Batch, examples: Sequence[Parameters]) -> str:
    """Invalid parameters must raise RequestError; accepted ones must be applicable."""
    refused = total = 0
    for parameters in _odd(examples):
        total += 1
        one = batch.fresh()
        try:
            one.enter(0, 0, parameters, 5)
        except RequestError:
            refused += 1
            continue
        except Exception as error:
            raise AssertionError(f"enter raised {describe(error)}, not RequestError, for {parameters}") from error
        try:
            for _ in range(4):
                one.apply([0])
                one.extend(0, 0)
        except AssertionError as error:
            raise AssertionError(f"enter took {parameters}, and {error}") from error
        except Exception as error:
            raise AssertionError(f"enter took {parameters}, and apply then raised {describe(error)}") from error
    return f"{refused} of {total} refused"


def check_waiting(batch: Batch, examples: Sequence[Parameters]) -> None:
    """With asynchronous execution, a synchronization would stall the host."""
    for start in range(0, len(examples), SLOTS):
        one = batch.fresh()
        slots = range(min(SLOTS, len(examples) - start))
        for slot in slots:
            one.enter(slot, slot, examples[start + slot], 5 + 3 * slot)
        for back in (0, 2):
            logits, rows = one.logits(len(slots)), one.rows(slots, [back] * len(slots))
            with never_waiting():
                one.processor.apply(logits, rows)


def check_together(batch: Batch, examples: Sequence[Parameters]) -> str:
    """Requests with the same parameters, of few slots and of all, with drafts."""
    remark = ""
    for parameters in examples:
        one = batch.fresh()
        for slot in range(SLOTS):
            one.enter(slot, slot, parameters, 20)
        drafts = _MANY_ROWS // SLOTS
        given = {
            _FEW_ROWS: (one.logits(_FEW_ROWS), one.rows(range(_FEW_ROWS))),
            _MANY_ROWS: (
                one.logits(SLOTS).repeat_interleave(drafts, 0),
                one.rows(
                    [slot for slot in range(SLOTS) for _ in range(drafts)], list(range(drafts - 1, -1, -1)) * SLOTS
                ),
            ),
        }
        remark = check_calls(partial(_apply, one.processor, given), (_FEW_ROWS, _MANY_ROWS), "rows")
    return remark


def _apply(processor: LogitsProcessor, given: Mapping[int, tuple[Tensor, LogitsRows]], count: int) -> Tensor:
    return processor.apply(*given[count])


def _history(generator: torch.Generator) -> Tensor:
    """Tokens of any kind for every other request, and three that repeat for the others."""
    tokens = torch.randint(VOCAB, (SLOTS, MAX_LEN + 1), generator=generator, dtype=torch.int32)
    few = torch.randint(3, (SLOTS // 2, MAX_LEN + 1), generator=generator)
    tokens[1::2] = tokens[1::2, :3].gather(1, few)
    return tokens


def _run(
    spec: LogitsProcessorSpec, bench: Bench, name: str, check: Callable[[Batch, Sequence[Parameters]], str | None]
) -> str | None:
    examples = _examples(spec).parameters
    return check(Batch(load_object(spec.implementation), bench.device, bench.random(spec.id, name)), examples)


def _judged(
    spec: LogitsProcessorSpec, bench: Bench, check: Callable[[LogitsProcessorSpec, Bench, LogitsExamples], str]
) -> str:
    with torch.inference_mode():  # as the engine does
        return check(spec, bench, _examples(spec))


def _examples(spec: LogitsProcessorSpec) -> LogitsExamples:
    if not spec.examples:
        raise Skip("the spec names no examples: parameters of requests")
    named = load_object(spec.examples)
    if isinstance(named, LogitsExamples):
        return named
    good = isinstance(named, Sequence) and named and all(isinstance(one, Mapping) for one in named)
    assert good, f"{spec.examples} is {named!r}, expected a sequence of parameters, each a mapping"
    return LogitsExamples(parameters=named)


def _alone(batch: Batch, number: int, parameters: Parameters, length: int, prompt: int = 0) -> Tensor:
    """The logits of a request in a batch of its own."""
    one = batch.fresh()
    one.enter(0, number, parameters, length, prompt)
    return one.apply([0])


def _pick(examples: Sequence[Parameters], number: int) -> Parameters:
    return examples[number % len(examples)]


def _odd(examples: Sequence[Parameters]) -> Iterator[dict[str, Any]]:
    yield {}
    yield {"no_such_parameter": 1}
    for parameters in examples:
        for name in parameters:
            yield {key: value for key, value in parameters.items() if key != name}
            yield from ({**parameters, name: junk} for junk in JUNK)


def _same(found: Tensor, expected: Tensor, what: str) -> None:
    close = torch.isclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=False)
    if not close.all():
        row, token = (~close).nonzero()[0].tolist()
        values = f"{float(found[row, token]):.6g}, expected {float(expected[row, token]):.6g}"
        raise AssertionError(f"{what}: the logit of token {token} is {values}, as alone; {int((~close).sum())} differ")


def _first(flags: Tensor) -> int:
    return int(flags.nonzero()[0])

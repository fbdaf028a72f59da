"""The conformance check of IO processors. Call :func:`check_io_processor` from a test of your own.

It plays the engine's part with made-up outputs, which are always the same for the same prompt and arrive in chunks. So
no weights are needed, and a request can be dropped or repeated at any stage.
"""

from __future__ import annotations

import base64
import gc
import random
import struct
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import isclose, isfinite
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch

from llmk.api import IOContext, IOOutput, IOProcessor, IOPrompt, IORequest, LlmkError, RequestError
from llmk.config import load
from llmk.engine.text.tokenizer import Tokenizer
from llmk.planning.boot import boot
from llmk_testing.growth import bytes_kept
from llmk_testing.io_blame import check_blamed
from llmk_testing.io_bodies import Body, garbage, numbered, varied
from llmk_testing.io_prompts import check_prompts

Expected = Callable[[IOContext, Body, Callable[[IOPrompt], IOOutput]], Any]
Make = Callable[[IOContext], IOProcessor]
Scores = Callable[[Sequence[int]], list[float | None]]
"""The log-probabilities of a prompt's tokens, of which the first has none."""

KEPT = 10_000
"""Bytes that may stay in any case."""
WHOLE = random.Random(0)
"""The generator that leaves outputs whole."""


def io_context(folder: Path, settings: Mapping[str, Any] | None = None, **options: Any) -> IOContext:
    """The context of a processor for the checkpoint in ``folder``. ``settings`` map paths to values; ``options`` are
    the plugin's own section."""
    booted = boot(load({"model.path": str(folder), **(settings or {})}, environ={}), verify=False)
    tokenizer = Tokenizer.load(booted.checkpoint)
    return IOContext(booted.checkpoint, booted.facts, tokenizer, booted.checkpoint.name, options)


def check_io_processor(
    make: Make, context: IOContext, bodies: Sequence[Body], *, refused: Sequence[Body] = (), tolerance: float = 1e-5
) -> None:
    """The whole suite. ``bodies`` are valid requests, of which at least two have different answers; ``refused`` are
    invalid ones. Raises ``AssertionError`` with the defect; numbers in answers may differ by ``tolerance``."""
    processor = make(context)
    alone = [served(processor, context, body) for body in bodies]
    for seed in range(4):
        _check_again(make(context) if seed % 2 else processor, context, bodies, alone, seed, tolerance)
    assert any(not alike(alone[0], other, tolerance) for other in alone[1:]), "all bodies have one answer"
    check_interleaved(processor, context, bodies, alone, tolerance)
    check_refusals(processor, context, bodies, refused)
    check_nothing_is_left(processor, context, bodies)
    _check_again(processor, context, bodies, alone, 0, tolerance)


def check_interleaved(
    processor: IOProcessor, context: IOContext, bodies: Sequence[Body], alone: Sequence[Any], tolerance: float = 1e-5
) -> None:
    """Concurrent requests, each body twice, must give the same answers as ``alone``."""
    generator = random.Random(7)
    running = [(processor.open(body), answer) for body, answer in zip(bodies, alone, strict=True) for _ in range(2)]
    left = [(request, outputs(context, request.prompts, seed)) for seed, (request, _) in enumerate(running)]
    while left:
        request, coming = chosen = generator.choice(left)
        if (output := next(coming, None)) is None:
            left.remove(chosen)
        else:
            request.take(output)
    for request, expected in running:
        got = plain(request.answer())
        assert alike(got, expected, tolerance), f"with concurrent requests it answers {got}, alone {expected}"


def check_refusals(
    processor: IOProcessor, context: IOContext, bodies: Sequence[Body], refused: Sequence[Body] = ()
) -> None:
    """``refused`` bodies must raise :class:`~llmk.api.RequestError`; garbage must raise it too, or be served."""
    for body in refused:
        assert opened(processor, body) is None, f"took {body!r}"
    check_blamed(processor, bodies, refused)
    for body in (*bodies, *garbage(bodies)):
        request = opened(processor, body)
        if request is not None:
            check_prompts(request, body)
            _check_served(request, context, body)


def check_nothing_is_left(processor: IOProcessor, context: IOContext, bodies: Sequence[Body]) -> None:
    """A request that is dropped at any stage must be freed. Its class must support weak references."""
    for body in bodies:
        for stage in ("opened", "started", "taken", "answered"):
            request = processor.open(body)
            coming = list(outputs(context, request.prompts))
            for output in {"opened": [], "started": coming[:1]}.get(stage, coming):
                request.take(output)
            if stage == "answered":
                request.answer()
            dropped = weakref.ref(request)
            del request
            if dropped() is not None:
                gc.collect()
            assert dropped() is None, f"a request that was {stage} and dropped is still referenced: {body!r}"


def check_options(
    make: Make,
    context: IOContext,
    bodies: Sequence[Body],
    refused: Sequence[Body],
    expected: Expected | None,
    tolerance: float = 1e-5,
) -> None:
    """Options must stay as they are, and may be left out: a processor that needs some says so by an
    :class:`~llmk.api.LlmkError`."""
    before = deepcopy(dict(context.options))
    first = make(context)
    served(first, context, bodies[0])
    assert context.options == before, f"the options that it was made with were {before}, and are {context.options}"
    for name in before:
        _made(make, replace(context, options={key: value for key, value in before.items() if key != name}))
    bare = replace(context, options={})
    if (processor := _made(make, bare)) is None:
        return
    for body in refused:
        assert opened(first, body) is None, f"took {body!r} once another was made with other options"
    check_refusals(processor, bare, bodies)
    if expected is not None:
        check_varied(processor, bare, [*bodies, *varied(bodies)], expected, tolerance)


def _made(make: Make, context: IOContext) -> IOProcessor | None:
    """A processor with some options; ``None`` if it says that it needs others."""
    try:
        return make(context)
    except LlmkError:
        return None
    except Exception as error:
        raise AssertionError(f"made with the options {dict(context.options)}, it raised {error!r}") from error


def check_bounded(processor: IOProcessor, context: IOContext, bodies: Sequence[Body]) -> str:
    """What is kept of requests may not grow without end."""
    shortest = min(bodies, key=lambda body: sum(len(tokens_of(context, one)) for one in processor.open(body).prompts))

    free = [name for name, own in shortest.items() if opened(processor, {**shortest, name: numbered(own, 0)})]

    def serve(number: int) -> None:
        request = processor.open({**shortest, **{name: numbered(shortest[name], number) for name in free}})
        for output in outputs(context, request.prompts, seed=-1):
            request.take(output)
        request.answer()

    few, many = bytes_kept(serve, (1100, 3300))
    assert many <= 1.5 * few + KEPT, f"it keeps {few} bytes after 1100 requests, and {many} after 3300"
    return f"{many} bytes after 3300 requests"


def check_oracle(
    processor: IOProcessor,
    context: IOContext,
    bodies: Sequence[Body],
    expected: Expected,
    tolerance: float = 1e-5,
) -> None:
    """Each body, then each once more after all others, must be answered as the oracle answers it."""
    for body in [*bodies, *reversed(bodies)]:
        right = plain(expected(context, body, partial(_whole, context)))
        got = served(processor, context, body, seed=len(repr(body)))
        assert alike(got, right, tolerance), f"{body!r} is answered {got}, expected {right}"
    check_varied(processor, context, varied(bodies), expected, tolerance)


def check_varied(
    processor: IOProcessor, context: IOContext, bodies: Iterable[Body], expected: Expected, tolerance: float = 1e-5
) -> None:
    """Bodies that are served, though they are no examples, are answered as the oracle answers them, if it knows how.
    Outputs come whole, so that equal texts have equal outputs to the last bit."""
    for body in bodies:
        request = opened(processor, body)
        if request is None or not can_run(context, request.prompts):
            continue
        got, right = served(processor, context, body, seed=-1), known(expected, context, body)
        assert right is None or alike(got, *right, tolerance), f"{body!r} is answered {got}, expected {right}"


def known(expected: Expected, context: IOContext, body: Body, scores: Scores | None = None) -> tuple[Any] | None:
    """The oracle's answer; ``None`` where it raises, because its author did not think of such a body."""
    try:
        return (plain(expected(context, body, partial(_whole, context, scores=scores))),)
    except Exception:
        return None


def _whole(context: IOContext, prompt: IOPrompt, scores: Scores | None = None) -> IOOutput:
    """All of a prompt's output."""
    (whole,) = outputs(context, [prompt], seed=-1, scores=scores)
    return whole


def outputs(
    context: IOContext, prompts: Sequence[IOPrompt], seed: int = 0, scores: Scores | None = None
) -> Iterator[IOOutput]:
    """Made-up outputs of ``prompts``, in random chunks and random order; for a negative seed, in one piece each.
    ``scores`` are their log-probabilities, in place of random ones."""
    generator = WHOLE if seed < 0 else random.Random(seed)
    left = [iter(_outputs_of(context, prompt, at, generator, scores or _logprobs)) for at, prompt in enumerate(prompts)]
    while left:
        coming = generator.choice(left)
        if (output := next(coming, None)) is None:
            left.remove(coming)
        else:
            yield output


def _outputs_of(
    context: IOContext, prompt: IOPrompt, at: int, generator: random.Random, scores: Scores
) -> Iterator[IOOutput]:
    tokens = tokens_of(context, prompt)
    end, first = len(tokens), 0
    logprobs = scores(tokens) if prompt.returns == "logprobs" else []
    if prompt.returns == "text":
        yield from _text_of(context, tokens, at, generator)
        return
    if prompt.returns == "last_hidden":
        first = end - 1
    pieces = 0 if generator is WHOLE else generator.randint(0, end - first - 1)
    cuts = sorted(generator.sample(range(first + 1, end), pieces))
    for start, stop in pairwise([first, *cuts, end]):
        piece = IOOutput(prompt=at, start=start, token_ids=tokens[start:stop])
        piece = replace(piece, finish_reason="stop" if stop == end else None)
        if logprobs:
            yield replace(piece, logprobs=logprobs[start:stop])
        else:
            yield replace(piece, hidden=_states(tokens, start, stop, context.facts.hidden_size))


def _text_of(context: IOContext, prompt: list[int], at: int, generator: random.Random) -> Iterator[IOOutput]:
    """The prompt backwards, in pieces of tokens and pieces of their text, which may come later than the tokens: where
    it could be the start of what ends the answer. Some answers are cut off."""
    tokens = prompt[::-1]
    text = context.tokenizer.decode(tokens)
    pieces = 0 if generator is WHOLE else generator.randint(0, len(tokens) - 1)
    cuts = [0, *sorted(generator.sample(range(1, len(tokens)), pieces)), len(tokens)]
    said = sorted(generator.randint(0, stop * len(text) // len(tokens)) for stop in cuts[1:-1])
    for (start, stop), (left, right) in zip(pairwise(cuts), pairwise([0, *said, len(text)]), strict=True):
        piece = IOOutput(prompt=at, start=len(prompt) + start, token_ids=tokens[start:stop], text=text[left:right])
        ends: Literal["length", "stop"] = "length" if len(tokens) % 2 else "stop"
        if stop == len(tokens) and piece.text and generator is not WHOLE and generator.random() < 0.5:
            yield replace(piece, text="")
            piece = replace(piece, start=piece.start + len(piece.token_ids), token_ids=[])
        yield replace(piece, finish_reason=ends if stop == len(tokens) else None)


def _logprobs(tokens: Sequence[int]) -> list[float | None]:
    """Each depends on its token and on all before it."""
    found: list[float | None] = []
    seen = 0
    for token in tokens:
        seen = zlib.crc32(f"{token} ".encode(), seen)
        found.append(-random.Random(seen).uniform(0.01, 9.0) if found else None)
    return found


def _states(tokens: Sequence[int], start: int, stop: int, width: int) -> torch.Tensor:
    rows = []
    for position in range(start, stop):
        drawn = torch.Generator().manual_seed(1_000_003 * position + tokens[position])
        rows.append(torch.randn(width, generator=drawn))
    return torch.stack(rows)


def alike(left: Any, right: Any, tolerance: float) -> bool:
    """Whether two answers are equal, up to ``tolerance`` in their numbers, also in those that are written in base64, as
    float32."""
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(alike(left[key], right[key], tolerance) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(alike(a, b, tolerance) for a, b in zip(left, right, strict=True))
    if isinstance(left, float) and isinstance(right, float):
        return isclose(left, right, rel_tol=tolerance, abs_tol=tolerance)
    if isinstance(left, str) and isinstance(right, str) and left != right:
        numbers = _numbers(left), _numbers(right)
        return bool(numbers[0]) and alike(*numbers, tolerance)
    return bool(left == right)


def _numbers(text: str) -> list[float]:
    try:
        raw = base64.b64decode(text, validate=True)
        return list(struct.unpack(f"<{len(raw) // 4}f", raw))
    except (ValueError, struct.error):
        return []


def served(processor: IOProcessor, context: IOContext, body: Body, seed: int = 0, scores: Scores | None = None) -> Any:
    """The answer, to which outputs came in pieces by ``seed``, with ``scores`` if they are given."""
    before = msgspec.json.encode(body)
    request = processor.open(body)
    assert msgspec.json.encode(body) == before, f"open changed the body {before!r}"
    check_prompts(request, body)
    for output in outputs(context, request.prompts, seed, scores):
        tokens, logprobs = list(output.token_ids), list(output.logprobs)
        request.take(output)
        same = list(output.token_ids) == tokens and list(output.logprobs) == logprobs
        assert same, f"take changed the tokens or log-probabilities that it was given, for {body!r}"
    answer = request.answer()
    assert msgspec.json.encode(body) == before, f"the body {before!r} was changed while it was answered"
    return plain(answer)


def _check_served(request: IORequest, context: IOContext, body: Body) -> None:
    """Garbage that is accepted must get an answer, except where the engine itself would refuse the prompts."""
    if not can_run(context, request.prompts):
        return
    try:
        for output in outputs(context, request.prompts):
            request.take(output)
        plain(request.answer())
    except RequestError:
        return
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(f"took {body!r}, then raised {error!r}") from error


def can_run(context: IOContext, prompts: Sequence[IOPrompt]) -> bool:
    """Whether the engine takes them: tokens that the model has, one at least, and fewer than its context."""
    known, longest = range(context.facts.vocab_size), context.facts.max_model_len
    tokens = [tokens_of(context, prompt) for prompt in prompts]
    return all(own and min(own) in known and max(own) in known and len(own) < longest for own in tokens)


def tokens_of(context: IOContext, prompt: IOPrompt) -> list[int]:
    """The tokens of a prompt, as the engine would make them."""
    return context.tokenizer.encode(prompt.prompt) if isinstance(prompt.prompt, str) else list(prompt.prompt)


def _check_again(
    processor: IOProcessor,
    context: IOContext,
    bodies: Sequence[Body],
    alone: Sequence[Any],
    seed: int,
    tolerance: float,
) -> None:
    for body, expected in zip(bodies, alone, strict=True):
        got = served(processor, context, body, seed)
        assert alike(got, expected, tolerance), f"{body!r} is answered {got}, in other chunks {expected}"


def plain(answer: Any) -> Any:
    """The answer as it is sent. Raises ``AssertionError`` if it is not plain JSON data, which has no NaN."""
    try:
        assert _is_finite(msgspec.to_builtins(answer)), f"the answer has NaN or infinity, which JSON has not: {answer}"
        return msgspec.json.decode(msgspec.json.encode(answer))
    except (TypeError, ValueError, RecursionError) as error:
        raise AssertionError(f"the answer can't be encoded as JSON: {error}") from error


def _is_finite(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or isfinite(value)


def opened(processor: IOProcessor, body: Body) -> IORequest | None:
    """The request; ``None`` if it is refused."""
    try:
        return processor.open(body)
    except RequestError as error:
        refused = error
    except Exception as error:
        raise AssertionError(f"raised {error!r} on {body!r}, not a RequestError") from error
    assert refused.param is not None, f"refused {body!r} without the field that is wrong: {refused}"
    return None

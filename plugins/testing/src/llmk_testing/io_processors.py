"""The conformance check of IO processors. Call :func:`check_io_processor` from a test of your own.

It plays the engine's part with made-up outputs, which are always the same for the same prompt and arrive in chunks. So
no weights are needed, and a request can be dropped or repeated at any stage.
"""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import isclose
from pathlib import Path
from typing import Any

import msgspec
import torch

from llmk.api import IOContext, IOOutput, IOProcessor, IOPrompt, IORequest, RequestError
from llmk.config import load
from llmk.engine.text.tokenizer import Tokenizer
from llmk.planning.boot import boot

Body = Mapping[str, Any]
Make = Callable[[IOContext], IOProcessor]

WHOLE = random.Random(0)
"""The generator that leaves outputs whole."""

_JUNK: tuple[Any, ...] = (
    *(None, True, 0, -1, 2**70, 1.5, "", "\x00", "a" * 1000, [], [[]], [None], [0, "a"], ["", ""]),
    *({}, {"": {}}, {"input": "a"}, [{}], [[[1]]], [-1], [2**40]),
)


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
    alone = [_served(processor, context, body) for body in bodies]
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
    opened = [(processor.open(body), answer) for body, answer in zip(bodies, alone, strict=True) for _ in range(2)]
    left = [(request, outputs(context, request.prompts, seed)) for seed, (request, _) in enumerate(opened)]
    while left:
        request, coming = chosen = generator.choice(left)
        if (output := next(coming, None)) is None:
            left.remove(chosen)
        else:
            request.take(output)
    for request, expected in opened:
        got = _plain(request.answer())
        assert alike(got, expected, tolerance), f"with concurrent requests it answers {got}, alone {expected}"


def check_refusals(
    processor: IOProcessor, context: IOContext, bodies: Sequence[Body], refused: Sequence[Body] = ()
) -> None:
    """``refused`` bodies must raise :class:`~llmk.api.RequestError`; garbage must raise it too, or be served."""
    for body in refused:
        assert _opened(processor, body) is None, f"took {body!r}"
    for body in garbage(bodies):
        request = _opened(processor, body)
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


def check_oracle(
    processor: IOProcessor,
    context: IOContext,
    bodies: Sequence[Body],
    expected: Callable[[IOContext, Body, Callable[[IOPrompt], IOOutput]], Any],
    tolerance: float = 1e-5,
) -> None:
    """Each body, then each once more after all others, must be answered as the oracle answers it."""

    def model(prompt: IOPrompt) -> IOOutput:
        (whole,) = outputs(context, [prompt], seed=-1)
        return whole

    for body in [*bodies, *reversed(bodies)]:
        right = _plain(expected(context, body, model))
        got = _served(processor, context, body, seed=len(repr(body)))
        assert alike(got, right, tolerance), f"{body!r} is answered {got}, expected {right}"


def check_prompts(request: IORequest, body: Body) -> None:
    """A request must have prompts of a known form, and no more than allowed."""
    prompts = list(request.prompts)
    assert prompts, f"there is no prompt for {body!r}"
    for prompt in prompts:
        assert prompt.returns in ("text", "logprobs", "hidden", "last_hidden"), f"returns = {prompt.returns!r}"
        assert isinstance(prompt.prompt, str) or all(isinstance(token, int) for token in prompt.prompt), prompt


def garbage(bodies: Sequence[Body]) -> Iterator[dict[str, Any]]:
    """Invalid bodies: ``bodies`` with a field removed, added, or of another type."""
    yield {}
    for body in bodies:
        yield {**body, "no_such_field": 1}
        for name in body:
            yield {key: value for key, value in body.items() if key != name}
            yield from ({**body, name: junk} for junk in _JUNK)


def outputs(context: IOContext, prompts: Sequence[IOPrompt], seed: int = 0) -> Iterator[IOOutput]:
    """Made-up outputs of ``prompts``, in random chunks and random order; for a negative seed, in one piece each."""
    generator = WHOLE if seed < 0 else random.Random(seed)
    left = [iter(_outputs_of(context, prompt, at, generator)) for at, prompt in enumerate(prompts)]
    while left:
        coming = generator.choice(left)
        if (output := next(coming, None)) is None:
            left.remove(coming)
        else:
            yield output


def _outputs_of(context: IOContext, prompt: IOPrompt, at: int, generator: random.Random) -> Iterator[IOOutput]:
    tokens = tokens_of(context, prompt)
    end, first = len(tokens), 0
    if prompt.returns == "logprobs":
        logprobs = [None, *(_logprob(tokens[: place + 1]) for place in range(1, len(tokens)))]
        yield IOOutput(prompt=at, start=0, token_ids=tokens, logprobs=logprobs, finish_reason="stop")
        return
    if prompt.returns == "text":
        answer = tokens[::-1]
        first, end, tokens = len(tokens), 2 * len(tokens), tokens + answer
    if prompt.returns == "last_hidden":
        first = end - 1
    pieces = 0 if generator is WHOLE else generator.randint(0, end - first - 1)
    cuts = sorted(generator.sample(range(first + 1, end), pieces))
    for start, stop in pairwise([first, *cuts, end]):
        piece = IOOutput(prompt=at, start=start, token_ids=tokens[start:stop])
        piece = replace(piece, finish_reason="stop" if stop == end else None)
        if prompt.returns == "text":
            yield replace(piece, text=context.tokenizer.decode(piece.token_ids))
        else:
            yield replace(piece, hidden=_states(tokens, start, stop, context.facts.hidden_size))


def _logprob(tokens: Sequence[int]) -> float:
    """Depends on the last token and on all before it."""
    return -random.Random(repr(tokens)).uniform(0.01, 9.0)


def _states(tokens: Sequence[int], start: int, stop: int, width: int) -> torch.Tensor:
    rows = []
    for position in range(start, stop):
        drawn = torch.Generator().manual_seed(1_000_003 * position + tokens[position])
        rows.append(torch.randn(width, generator=drawn))
    return torch.stack(rows)


def alike(left: Any, right: Any, tolerance: float) -> bool:
    """Whether two answers are equal, up to ``tolerance`` in their numbers."""
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(alike(left[key], right[key], tolerance) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(alike(a, b, tolerance) for a, b in zip(left, right, strict=True))
    if isinstance(left, float) and isinstance(right, float):
        return isclose(left, right, rel_tol=tolerance, abs_tol=tolerance)
    return bool(left == right)


def _served(processor: IOProcessor, context: IOContext, body: Body, seed: int = 0) -> Any:
    before = msgspec.json.encode(body)
    request = processor.open(body)
    assert msgspec.json.encode(body) == before, f"open changed the body {before!r}"
    check_prompts(request, body)
    for output in outputs(context, request.prompts, seed):
        request.take(output)
    return _plain(request.answer())


def _check_served(request: IORequest, context: IOContext, body: Body) -> None:
    """Garbage that is accepted must get an answer, except where the engine itself would refuse the prompts."""
    known = range(context.facts.vocab_size)
    tokens = [tokens_of(context, prompt) for prompt in request.prompts]
    if not all(own and min(own) in known and max(own) in known for own in tokens):
        return
    try:
        for output in outputs(context, request.prompts):
            request.take(output)
        _plain(request.answer())
    except RequestError:
        return
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(f"took {body!r}, then raised {error!r}") from error


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
        got = _served(processor, context, body, seed)
        assert alike(got, expected, tolerance), f"{body!r} is answered {got}, in other chunks {expected}"


def _plain(answer: Any) -> Any:
    """The answer as it is sent. Raises ``AssertionError`` if it is not plain JSON data."""
    try:
        return msgspec.json.decode(msgspec.json.encode(answer))
    except (TypeError, ValueError, RecursionError) as error:
        raise AssertionError(f"the answer can't be encoded as JSON: {error}") from error


def _opened(processor: IOProcessor, body: Body) -> IORequest | None:
    """The request; ``None`` if it is refused."""
    try:
        return processor.open(body)
    except RequestError:
        return None
    except Exception as error:
        raise AssertionError(f"raised {error!r} on {body!r}, not a RequestError") from error

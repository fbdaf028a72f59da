"""Checks of the prompts of an IO processor's request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from llmk.api import IOPrompt, IORequest
from llmk.engine.wire.sampling_params import SamplingParams
from llmk_testing.io_bodies import Body, steps


def check_prompts(request: IORequest, body: Body) -> None:
    """A request must have prompts of a known form, which name the fields that they are from."""
    prompts = request.prompts
    assert isinstance(prompts, Sequence), f"prompts is a {type(prompts).__name__}, which has no length"
    assert prompts, f"there is no prompt for {body!r}"
    for prompt in prompts:
        assert prompt.returns in ("text", "logprobs", "hidden", "last_hidden"), f"returns = {prompt.returns!r}"
        assert isinstance(prompt.prompt, str) or all(isinstance(token, int) for token in prompt.prompt), prompt
        _check_sampling(prompt)
        _check_param(prompt, body)


def _check_sampling(prompt: IOPrompt) -> None:
    """The engine would refuse others."""
    assert not prompt.sampling or prompt.returns == "text", f"sampling is given, but nothing is sampled: {prompt}"
    unknown = prompt.sampling.keys() - (set(SamplingParams.__struct_fields__) - {"n"})
    assert not unknown, f"sampling names {', '.join(sorted(unknown))}, which llmk.SamplingParams has not"
    try:
        msgspec.convert(dict(prompt.sampling), SamplingParams)
    except msgspec.ValidationError as error:
        raise AssertionError(f"sampling is {dict(prompt.sampling)}: {error}") from error


def _check_param(prompt: IOPrompt, body: Body) -> None:
    """A path starts with a field of the body and names no place beyond a list's end; other steps may say more than the
    body has. A text that stands in the body must not be said to be from where another stands."""
    value: Any = body
    for depth, step in enumerate(steps(prompt.param)):
        place = step if isinstance(value, list) else str(step)
        known = place in (range(len(value)) if isinstance(value, list) else value if isinstance(value, Mapping) else ())
        wrong = not known and (depth == 0 or (isinstance(value, list) and isinstance(step, int)))
        assert not wrong, f"a prompt is said to be from {prompt.param!r}, which {body!r} has not"
        value = value[place] if known else value
    if prompt.param and prompt.prompt in _leaves(body):
        inside = value == prompt.prompt or prompt.prompt in _leaves(value)
        assert inside, f"the prompt {prompt.prompt!r} is said to be from {prompt.param!r}, which is {value!r}"


def _leaves(value: Any) -> list[Any]:
    """All texts, and lists that have no other lists in them."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [leaf for each in value.values() for leaf in _leaves(each)]
    if isinstance(value, list):
        inner = [leaf for each in value for leaf in _leaves(each)]
        return inner if any(isinstance(each, list | Mapping | str) for each in value) else [value]
    return []

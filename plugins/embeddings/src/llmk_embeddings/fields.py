"""Common parts of request bodies: known fields, and the texts to embed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard, TypeVar

from llmk.api import RequestError

T = TypeVar("T")
Input = str | list[int]


def check_names(body: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raises RequestError for a field that is not ``known``."""
    for name in body:
        if name not in known:
            raise RequestError(f"unknown field {name!r}; known are {', '.join(known)}", param=name)


def check_model(body: Mapping[str, Any], served: str) -> None:
    """Raises RequestError if the body names a model other than ``served``."""
    if (named := body.get("model")) not in (None, served):
        raise RequestError(f"the model {named!r} is not served here; {served!r} is", param="model")


def one_of(body: Mapping[str, Any], name: str, choices: tuple[T, ...]) -> T:
    """The value of a field, one of ``choices``; by default the first."""
    value = body.get(name)
    for choice in choices:
        if value == choice and type(value) is type(choice):
            return choice
    if value is None:
        return choices[0]
    raise RequestError(f"{name} must be one of {', '.join(map(repr, choices))}, not {value!r}", param=name)


def inputs(body: Mapping[str, Any]) -> list[tuple[str, Input]]:
    """The texts or token ids of the field ``input``, one or a list of them, each with the path of its field."""
    given = body.get("input")
    if isinstance(given, str) or _are_tokens(given):
        return [("input", given)]
    if not isinstance(given, list) or not given:
        raise RequestError("input must be a text, a list of texts, token ids or lists of them", param="input")
    found: list[tuple[str, Input]] = []
    for number, item in enumerate(given):
        if not (isinstance(item, str) or _are_tokens(item)):
            raise RequestError(f"input[{number}] is neither a text nor token ids", param=f"input[{number}]")
        found.append((f"input[{number}]", item))
    return found


def usage(num_tokens: int) -> dict[str, int]:
    """OpenAI's token usage."""
    return {"prompt_tokens": num_tokens, "total_tokens": num_tokens}


def _are_tokens(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)

"""Flags for sampling and messages, shared by ``run`` and ``chat``."""

from __future__ import annotations

import argparse
from typing import Any

from llmk.engine.wire.sampling_params import parameters

_FLAGS = [parameter for parameter in parameters() if parameter.flag]
NUMBERS: dict[str, type[int] | type[float]] = {
    parameter.name: float if parameter.kind is float else int for parameter in _FLAGS if parameter.default != ()
}
"""Parameters that are numbers, with their types."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    group = parser.add_argument_group("answer")
    for parameter in _FLAGS:
        flag, kind = f"--{parameter.name.replace('_', '-')}", parameter.kind
        if parameter.default == ():
            group.add_argument(flag, action="append", help=f"{parameter.summary} (repeatable)")
        else:
            group.add_argument(flag, type=float if kind is float else int, help=parameter.summary)
    group.add_argument("--system", help="the system message")
    group.add_argument("--think", action=argparse.BooleanOptionalAction, help="switch the model's thinking on or off")


def options(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of a request that the flags set."""
    given = {flag.name: value for flag in _FLAGS if (value := getattr(args, flag.name)) is not None}
    return given if args.think is None else {**given, **thinking(args.think)}


def thinking(on: bool) -> dict[str, str]:
    """The field of a request that switches thinking, where the model has a switch for it."""
    return {"reasoning_effort": "medium" if on else "none"}


def messages(args: argparse.Namespace, prompt: str) -> list[dict[str, Any]]:
    """A conversation of one question, after the system message if there is one."""
    system = [{"role": "system", "content": args.system}] if args.system else []
    return [*system, {"role": "user", "content": prompt}]

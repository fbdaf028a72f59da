"""Flags for sampling and messages, shared by ``run`` and ``chat``."""

from __future__ import annotations

import argparse
from typing import Any

_NUMBERS = {
    "max_tokens": (int, "maximum number of tokens to generate"),
    "temperature": (float, "0: greedy, always the most likely token"),
    "top_p": (float, "sample from the most likely tokens with this total probability"),
    "top_k": (int, "sample from this many of the most likely tokens"),
    "seed": (int, "seed of the sampling"),
}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    group = parser.add_argument_group("answer")
    for name, (kind, text) in _NUMBERS.items():
        group.add_argument(f"--{name.replace('_', '-')}", type=kind, help=text)
    group.add_argument("--stop", action="append", help="text at which to stop (repeatable)")
    group.add_argument("--system", help="the system message")
    group.add_argument("--think", action=argparse.BooleanOptionalAction, help="switch the model's thinking on or off")


def options(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of a request that the flags set."""
    given = {name: getattr(args, name) for name in (*_NUMBERS, "stop") if getattr(args, name) is not None}
    return given if args.think is None else {**given, "chat_template_kwargs": {"enable_thinking": args.think}}


def messages(args: argparse.Namespace, prompt: str) -> list[dict[str, Any]]:
    """A conversation of one question, after the system message if there is one."""
    system = [{"role": "system", "content": args.system}] if args.system else []
    return [*system, {"role": "user", "content": prompt}]

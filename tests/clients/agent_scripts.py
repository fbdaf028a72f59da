"""What an assistant writes in three conversations with ten tool calls each."""

from __future__ import annotations

from typing import Any

from scripted_model import Turn

CALLS = 10


def _one(number: int) -> tuple[str, dict[str, Any]]:
    odd = {"text": f'{number} "quoted" \\ <b>ü</b>\n</s>', "tags": ["a", "}", "😀"][: number % 4]}
    choices = (("get_weather", {"city": "Paris"[: number + 1]}), ("add", {"a": number, "b": -1}), ("note", odd))
    return choices[number % 3]


def _split(sizes: tuple[int, ...], text: str = "") -> list[Turn]:
    calls, turns = [_one(number) for number in range(CALLS)], []
    for size in sizes:
        turns.append(Turn(text, tuple(calls[:size])))
        calls = calls[size:]
    return [*turns, Turn("All is done.")]


SCRIPTS = (_split((1,) * CALLS), _split((2,) * 5), _split((1, 3, 6), "Let me look."))


def turn_of(conversation: int, results: int) -> Turn:
    """The turn after so many results of tools."""
    before = 0
    for turn in SCRIPTS[conversation]:
        if before == results:
            return turn
        before += len(turn.calls)
    raise AssertionError(f"no turn after {results} results")

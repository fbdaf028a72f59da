"""How far ``llmk tune`` is, and how long it may take: below the results on a terminal, and as lines elsewhere."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TextIO

from llmk.cli.terminal import width_of
from llmk.planning.choices.fetch_progress import duration
from llmk.planning.tables import wrapped

_CLEAR = "\r\033[K"


class TuneProgress:
    """``results`` takes a line per measurement, ``states`` a line per site, which is drawn again where it is a
    terminal."""

    def __init__(self, results: TextIO, states: TextIO) -> None:
        self._results, self._states = results, states
        self._started = time.monotonic()
        self._done = self._total = 0

    def say(self, text: str) -> None:
        """Prints a result."""
        self._clear()
        print(wrapped(text, width_of(self._results)), file=self._results, flush=True)
        self._draw()

    def update(self, done: int, total: int) -> None:
        """Takes how many sites are measured, of how many."""
        self._done, self._total = done, total
        if self._states.isatty():
            self._draw()
        elif done < total:
            self._write(f"{self._state()}\n")

    def close(self) -> None:
        """Takes the state away."""
        self._clear()

    def _state(self) -> str:
        state = f"measuring site {self._done + 1} of {self._total}"
        if not self._done:
            return state
        spent = time.monotonic() - self._started
        left = spent / self._done * (self._total - self._done)
        return f"{state}, about {duration(left)} left"

    def _draw(self) -> None:
        if self._states.isatty() and self._done < self._total:
            self._write(f"{_CLEAR}{self._state()[: width_of(self._states) - 1]}")

    def _clear(self) -> None:
        if self._states.isatty():
            self._write(_CLEAR)

    def _write(self, text: str) -> None:
        with suppress(OSError):
            print(text, end="", file=self._states, flush=True)

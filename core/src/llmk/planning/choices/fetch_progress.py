"""Shows how far the download of a model is: a line that is written again on a terminal, lines of the log elsewhere."""

from __future__ import annotations

import logging
import shutil
import sys
import time
from contextlib import suppress

logger = logging.getLogger(__name__)

_REDRAW, _LOG = 0.2, 15.0
"""Seconds between two states on a terminal, and between two lines elsewhere."""


class Shown:
    """The progress of one download. Nothing is shown of what is there already."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._terminal = sys.stderr.isatty()
        self._started = self._last = time.monotonic()
        self._first: int | None = None
        self._drawn = False

    def update(self, done: int, total: int) -> None:
        """Implements :data:`~llmk.api.FetchProgress`."""
        now = time.monotonic()
        if self._first is None:
            self._first, self._started = done, now
            if done < total and not self._terminal:
                _say(f"downloading {self._name}: {_bytes(total - done)} of {_bytes(total)}")
        elif now - self._last < (_REDRAW if self._terminal else _LOG) and done < total:
            return
        if total == self._first or (done >= total and not self._drawn and self._terminal):
            return
        self._last = now
        if self._terminal:
            self._draw(f"{self._name}  {self._state(done, total, now)}")
        elif now > self._started:
            _say(f"downloading {self._name}: {self._state(done, total, now)}")

    def close(self) -> None:
        """Ends the line on a terminal."""
        if self._drawn:
            with suppress(OSError):
                print(file=sys.stderr, flush=True)

    def _state(self, done: int, total: int, now: float) -> str:
        seconds, got = now - self._started, done - (self._first or 0)
        text = f"{100 * done // total if total else 100:3}% of {_bytes(total)}"
        if seconds < 1 or got <= 0:
            return text
        left = f", {duration((total - done) * seconds / got)} left" if done < total else f" in {duration(seconds)}"
        return f"{text}, {_bytes(got / seconds)}/s{left}"

    def _draw(self, text: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        self._drawn = True
        with suppress(OSError):
            print(f"\r{text[:width]:{width}}", end="", file=sys.stderr, flush=True)


def _say(text: str) -> None:
    """A line of the log where there is one, else of standard error."""
    if logging.getLogger().handlers:
        logger.info("%s", text)
        return
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def duration(count: float) -> str:
    """Seconds, as people say them."""
    minutes, seconds = divmod(round(count), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s" if minutes else f"{seconds} s"

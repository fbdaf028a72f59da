"""Pinned prefixes, on the front end's side."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmk.api import CheckpointError, ConfigError
from llmk.api.checkpoint import read_named

if TYPE_CHECKING:
    from llmk.config.schema import PinnedPrompt

_LONGEST = 64 << 20
"""Bytes of a text that is to be pinned: more than the longest context takes."""


@dataclass(frozen=True, slots=True)
class PinnedPrefix:
    """A prefix of ``num_tokens`` tokens that is kept in the cache until ``until`` (seconds since the epoch; ``None``:
    without end)."""

    id: str
    num_tokens: int
    until: float | None
    cache_salt: str = ""
    tenant: str = ""

    @property
    def is_over(self) -> bool:
        """Whether its time is up."""
        return self.until is not None and self.until <= time.time()


class PinnedPrefixes:
    """The pins that have been made and not ended. ``held`` returns the ids of those that the engine holds: it drops
    pins whose blocks it needs, and has none while it is started again."""

    def __init__(self, held: Callable[[], Collection[str]]) -> None:
        self._held = held
        self._pins: dict[str, PinnedPrefix] = {}

    def add(self, pin: PinnedPrefix) -> None:
        """Takes note of a pin, in place of one with its id."""
        self._pins[pin.id] = pin

    def drop(self, id: str) -> bool:
        """Forgets a pin; returns whether it was there, and not over."""
        pin = self._pins.pop(id, None)
        return pin is not None and not pin.is_over

    def current(self) -> list[PinnedPrefix]:
        """The pins that are held, and whose time is not up."""
        self._pins = {id: pin for id, pin in self._pins.items() if not pin.is_over}
        held = self._held()
        return [pin for id, pin in self._pins.items() if id in held]


def read_text(pin: PinnedPrompt) -> str:
    """The text that a configured pin names. Raises :class:`~llmk.api.ConfigError` where there is none."""
    if bool(pin.text) == bool(pin.file):
        raise ConfigError(f"cache.pins: {pin.id!r} needs either text or file", hint="give one of them")
    if pin.text:
        return pin.text
    try:
        return read_named(pin.file, _LONGEST)
    except CheckpointError as error:
        raise ConfigError(f"cache.pins: {pin.id!r}: {error.message}", hint=error.hint) from error

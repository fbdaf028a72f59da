"""The markers of PLaMo 3, which are several tokens each, so that an answer may end inside of one."""

from __future__ import annotations

from llmk_parsers.machine import Machine, Markers

_FAMILY = "<|plamo:"


def marker(name: str) -> str:
    """The marker ``name``, such as ``begin_think``."""
    return f"{_FAMILY}{name}:plamo|>"


TURN_END = "<|plamo:tag|>"


class PlamoMarkers(Machine):
    """Drops a marker that the end of the answer cuts off."""

    def _read_until(self, wanted: Markers) -> tuple[str, str]:
        text, found = super()._read_until(wanted)
        if self._ended and not found:
            cut = text.rfind(_FAMILY)
            if cut >= 0 and wanted.hold_from(text, 0) <= cut:
                text = text[:cut]
        return text, found

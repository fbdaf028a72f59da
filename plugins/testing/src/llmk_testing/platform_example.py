"""What a platform's probe is tried on: machines that may not be here, by their files, and what is true of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmk.api import Host


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformExample:
    """``PlatformSpec.examples`` names a sequence of these.

    ``files`` are the machine's files by absolute path, ``machine`` and ``system`` what ``uname`` says there. ``facts``
    are fields of :class:`~llmk.api.PlatformFacts` and their values, which the probe must return; ``None``: the platform
    is not usable there, for the reasons of these ``refused`` codes. Where the machine is ``known``, one of the spec's
    known machines must have the same facts, but for the memory and the device's name. ``needs`` are the flags of its
    ``/proc/cpuinfo`` without any one of which some of these ``facts`` are others, all of them; ``devices`` the names by
    which the variables of ``ranks.visible`` may list its usable devices, each alone, as numbers where they have any.
    ``said`` are functions of a :class:`~llmk.api.Host`, such as those that the memory facet uses, each with what it
    must return: give them for each kind of memory that the platform knows, a device's own and the host's, with a limit
    and without, as the memory in total and what is available.
    """

    name: str
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    machine: str = "x86_64"
    system: str = "Linux"
    environ: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] | None = None
    refused: Sequence[str] = ()
    known: bool = False
    needs: Sequence[str] = ()
    devices: Sequence[str] = ()
    said: Sequence[tuple[Callable[[Host], Any], Any]] = ()

    def host(self, root: Path) -> Host:
        """The machine, whose files are written below ``root``."""
        for path, text in self.files.items():
            file = root / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return Host(root=root, environ=self.environ, machine=self.machine, system=self.system)

"""What the conformance kit tries stat loggers on, where it can read what they write or send."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from llmk.api import StatLoggerContext, StatsSnapshot

Runs = Sequence[Sequence[StatsSnapshot]]
"""The snapshots of each logger that had the same options, one logger after the other."""
Answers = Literal["takes", "refuses", "hangs"]
"""What a server does: it takes what is sent; it refuses that, as by status 503 or by closing the connection; or it
never answers."""
Receiver = Callable[[Path, int, Answers], AbstractContextManager[Mapping[str, Any]]]
"""Receives at a port what a logger sends, as long as its context is entered, and is away before and after that. It adds
what it takes to a file in the folder that it gets, and yields the options that say where it listens."""


@dataclass(frozen=True, slots=True)
class StatExamples:
    """``sections`` are of the plugin's configuration, whose relative paths refer to a folder of the kit's.

    ``oracle`` is the logger once more, by the plainest code: from the context and all snapshots so far, the bytes of
    each file that must be in the folder, by name, as soon as the last snapshot was recorded. The context has what the
    loggers had, so also ``model_name``, which is another one for each section.

    ``receiver`` is for loggers that send what they record; :mod:`llmk_testing.stat_receivers` has some.

    ``environment`` are variables that are set while the logger is tried, such as that of a token.
    """

    sections: Sequence[Mapping[str, Any]]
    oracle: Callable[[StatLoggerContext, Runs], Mapping[str, bytes]]
    receiver: Receiver | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

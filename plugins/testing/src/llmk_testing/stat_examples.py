"""What the conformance kit tries stat loggers on, where it can read what they write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmk.api import StatsSnapshot

Runs = Sequence[Sequence[StatsSnapshot]]
"""The snapshots of each logger that had the same options, one logger after the other."""


@dataclass(frozen=True, slots=True)
class StatExamples:
    """``sections`` are of the plugin's configuration, whose relative paths refer to a folder of the kit's.

    ``oracle`` is the logger once more, by the plainest code: from the options and all snapshots so far, the bytes of
    each file that must be in the folder, by name, as soon as the last snapshot was recorded.
    """

    sections: Sequence[Mapping[str, Any]]
    oracle: Callable[[Mapping[str, Any], Runs], Mapping[str, bytes]]

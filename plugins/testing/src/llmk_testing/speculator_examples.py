"""What a speculator is tried on: sections of its configuration, and an oracle that says what must be drafted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmk.api import SpeculatorContext

Draft = Callable[[Sequence[int], int], Sequence[int]]
"""The drafts for a request with these tokens, at most so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculatorExamples:
    """``SpeculatorSpec.examples`` names one, or a sequence of ``options`` alone. Each is a ``[plugin.NAME]`` section, a
    mapping of options without a prefix: ``{"ngram": 3}``. The plugin's schema adds the defaults of those left out, for
    the speculator and for the oracle.

    ``oracle`` is the speculator's rule once more, by the plainest code, of the tokens of one request: no state, no care
    for time. Every draft of the speculator must be the oracle's, on the host and on the device. By heads of the model,
    none is needed: what these predict is known.
    """

    options: Sequence[Mapping[str, Any]] = ({},)
    oracle: Callable[[SpeculatorContext], Draft]

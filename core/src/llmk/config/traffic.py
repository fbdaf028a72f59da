"""Traffic: the distribution of token counts over a server's steps, by which costs of weight layouts are averaged.

A different kernel may be chosen for every token count, but the weight layout is chosen once, so its cost depends on how
often steps have which token count. The distribution is that of ``iteration_tokens`` in the saved ``/metrics`` of
a server, a configured one, or :data:`USUAL`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from llmk.api import ConfigError

USUAL: Mapping[int, float] = {1: 40, 8: 20, 64: 25, 512: 10, 2048: 5}
"""Percentage of steps by token count: mostly decode steps of few or many requests; 15% of the steps have prompts."""

_BUCKET = re.compile(r'^llmk_iteration_tokens_bucket\{.*\ble="([^"]+)".*\}\s+(\S+)', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Traffic:
    """The fraction of steps by token count (the sum is 1), and where it is from."""

    shares: Mapping[int, float]
    source: str

    def __str__(self) -> str:
        parts = ", ".join(f"{tokens:,} ({share:.0%})" for tokens, share in self.shares.items())
        return f"steps of {parts} tokens, from {self.source}"


def load_traffic(setting: str | Mapping[int, float]) -> Traffic:
    """The traffic for the setting ``platform.traffic``: a table, or the file of a server's metrics.

    Raises ConfigError if the file can't be read or has no steps.
    """
    if not isinstance(setting, str):
        return _traffic(setting, "platform.traffic") if setting else _traffic(USUAL, "the default mix")
    return _traffic(_recorded(Path(setting)), setting) if setting else _traffic(USUAL, "the default mix")


def _traffic(steps: Mapping[int, float], source: str) -> Traffic:
    total = sum(steps.values())
    return Traffic({tokens: steps[tokens] / total for tokens in sorted(steps)}, source)


def _recorded(file: Path) -> dict[int, float]:
    """The number of steps by the bucket's upper bound; steps above the highest bound count as twice that bound."""
    hint = "save it with: curl http://HOST:PORT/metrics > FILE, while or after the server serves"
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"platform.traffic {str(file)!r} can't be read: {error}", hint=hint) from error
    totals: dict[float, float] = {}
    for bound, count in _BUCKET.findall(text):
        try:
            totals[float(bound)] = totals.get(float(bound), 0.0) + float(count)
        except ValueError as error:
            raise ConfigError(
                f"platform.traffic {str(file)!r} is not a server's metrics: {error}", hint=hint
            ) from error
    steps: dict[int, float] = {}
    below = highest = 0.0
    for bound in sorted(totals):
        highest = bound if math.isfinite(bound) else 2 * highest
        if totals[bound] > below:
            steps[max(1, int(highest))] = totals[bound] - below
        below = max(below, totals[bound])
    if not steps:
        message = f"platform.traffic {str(file)!r} has no steps: no llmk_iteration_tokens above zero"
        raise ConfigError(message, hint=hint)
    return steps

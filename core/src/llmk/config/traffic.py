"""Traffic: how many tokens the steps of a server compute, by which the costs of weight layouts are weighed.

A kernel may be chosen anew for every token count, but what weights are kept in is chosen once. What that costs depends
on how often steps compute how many tokens: of ``iteration_tokens_total`` in a server's ``/metrics`` where that was
saved, of a stated mix, or of :data:`USUAL`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from llmk.api import ConfigError

USUAL: Mapping[int, float] = {1: 40, 8: 20, 64: 25, 512: 10, 2048: 5}
"""Steps by token count, in percent: mostly decodes of few and of many requests, and one step in seven has prompts."""

_BUCKET = re.compile(r'^llmk:iteration_tokens_total_bucket\{.*\ble="([^"]+)".*\}\s+(\S+)', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Traffic:
    """The share of steps by token count, which add up to 1, and where they are from."""

    shares: Mapping[int, float]
    source: str

    def __str__(self) -> str:
        parts = ", ".join(f"{tokens:,} ({share:.0%})" for tokens, share in self.shares.items())
        return f"steps of {parts} tokens, from {self.source}"


def load_traffic(setting: str | Mapping[int, float]) -> Traffic:
    """The traffic that the setting ``platform.traffic`` stands for: a mix, or the file of a server's metrics.

    Raises ConfigError where the file can't be read or has no steps.
    """
    if not isinstance(setting, str):
        return _traffic(setting, "platform.traffic") if setting else _traffic(USUAL, "the default mix")
    return _traffic(_recorded(Path(setting)), setting) if setting else _traffic(USUAL, "the default mix")


def _traffic(steps: Mapping[int, float], source: str) -> Traffic:
    total = sum(steps.values())
    return Traffic({tokens: steps[tokens] / total for tokens in sorted(steps)}, source)


def _recorded(file: Path) -> dict[int, float]:
    """Steps by the bucket's upper bound; those above the highest count as twice that."""
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
        message = f"platform.traffic {str(file)!r} has no steps: no llmk:iteration_tokens_total above zero"
        raise ConfigError(message, hint=hint)
    return steps

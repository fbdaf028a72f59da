"""From samples to figures: percentiles, rates, and goodput."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llmk.api import ConfigError
from llmk_bench.sample import Sample

PERCENTILES = (50, 90, 95, 99)
LATE_SECONDS = 0.01
"""A request that was sent so much after it was due was delayed by the client."""
LATENCIES: Mapping[str, Callable[[Sample], float | None]] = {
    "ttft": lambda sample: sample.ttft,
    "tpot": lambda sample: sample.tpot,
    "e2e": lambda sample: sample.e2e,
}
"""What each request has one of, and a target can be set for."""


def parse_targets(texts: Sequence[str]) -> dict[str, float]:
    """Milliseconds by latency, from ``ttft:500``. Raises ConfigError."""
    targets = {}
    for text in texts:
        name, _, number = text.partition(":")
        if name not in LATENCIES or not number.replace(".", "", 1).isdigit():
            raise ConfigError(f"--goodput {text} is no target", hint="milliseconds: ttft:500 tpot:50 e2e:5000")
        targets[name] = float(number)
    return targets


def percentile(ordered: Sequence[float], share: float) -> float:
    """Of sorted values, interpolated between neighbours."""
    at = (len(ordered) - 1) * share / 100
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def distribution(seconds: Sequence[float]) -> dict[str, float]:
    """Mean and percentiles, in milliseconds; empty where there are no values."""
    if not seconds:
        return {}
    ordered = sorted(seconds)
    found = {"mean": statistics.fmean(ordered), **{f"p{n}": percentile(ordered, n) for n in PERCENTILES}}
    return {name: round(1e3 * value, 3) for name, value in {**found, "max": ordered[-1]}.items()}


def summarize(samples: Sequence[Sample], targets: Mapping[str, float] | None = None) -> dict[str, Any]:
    """All figures of a load. Latencies leave out requests that failed, and the long one among the others."""
    whole = [sample for sample in samples if not sample.error]
    plain = [sample for sample in whole if not sample.special]
    found: dict[str, Any] = {"requests": len(samples), "failed": len(samples) - len(whole)}
    if not plain:
        return found
    seconds = max(sample.arrivals[-1] for sample in whole) - min(sample.due for sample in whole)
    rates = {
        "requests_per_s": len(whole),
        "output_tokens_per_s": sum(sample.tokens for sample in whole),
        "total_tokens_per_s": sum(sample.tokens + sample.prompt_tokens for sample in whole),
    }
    found |= {"seconds": round(seconds, 3), **{name: round(n / seconds, 3) for name, n in rates.items()}}
    for name, of in LATENCIES.items():
        found[f"{name}_ms"] = distribution([value for value in map(of, plain) if value is not None])
    found["itl_ms"] = distribution([gap for sample in plain for gap in sample.gaps])
    found |= {
        "prompt_tokens": round(statistics.fmean(sample.prompt_tokens for sample in plain), 1),
        "output_tokens": round(statistics.fmean(sample.tokens for sample in plain), 1),
        "events": round(statistics.fmean(len(sample.arrivals) for sample in plain), 1),
        "other_length": sum(sample.tokens != sample.wanted for sample in whole),
        "late": sum(sample.sent - sample.due > LATE_SECONDS for sample in samples),
    }
    if long := [sample for sample in whole if sample.special]:
        found["long_ttft_ms"] = [round(1e3 * sample.ttft, 1) for sample in long]
    if targets:
        good = sum(_meets(sample, targets) for sample in plain)
        found |= {"good": good, "goodput_per_s": round(good / seconds, 3), "targets_ms": dict(targets)}
    return found


def _meets(sample: Sample, targets: Mapping[str, float]) -> bool:
    """Whether a request met all targets. What it has not (time per token of a single one) is met."""
    values = {name: LATENCIES[name](sample) for name in targets}
    return all(value is None or 1e3 * value <= targets[name] for name, value in values.items())

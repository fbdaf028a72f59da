"""What several replicas are together: their statistics as one, and whether one can stand in for another."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from msgspec.structs import replace

from llmk.engine.wire.engine_info import EngineInfo
from llmk.engine.wire.request import EngineStats, add_counts

_SUMS = (
    *("running", "waiting", "total_blocks", "used_blocks", "pinned_blocks"),
    *("prefix_queried_tokens", "prefix_hit_tokens", "preemptions", "timeouts", "policy_failures"),
    *("speculator_failures", "broken_logits", "steps", "prompt_tokens", "generated_tokens", "restarts", "retried"),
)
_PER_DEVICE = ("flops", "read_bytes", "written_bytes")


def total(stats: Sequence[EngineStats]) -> EngineStats:
    """The sums of counters and gauges; of a device's work, the mean. It is up where one is."""
    whole = EngineStats(up=int(any(one.up for one in stats)))
    for name in _SUMS:
        setattr(whole, name, sum(getattr(one, name) for one in stats))
    for name in _PER_DEVICE:
        setattr(whole, name, sum(getattr(one, name) for one in stats) / len(stats))
    whole.pins = sorted({pin for one in stats for pin in one.pins})
    for name in ("drafted", "accepted"):
        counts = zip_longest(*(getattr(one, name) for one in stats), fillvalue=0)
        setattr(whole, name, [sum(each) for each in counts])
    for one in stats:
        add_counts(whole.shadows, [replace(count) for count in one.shadows])
    return whole


def unlike(first: EngineInfo, other: EngineInfo) -> str:
    """Why a sequence of one replica can't go on in another; empty: it can."""
    for name in ("vocab_size", "block_size", "shared_block_size", "head", "grammars", "logits_processors", "lacks"):
        mine, its = getattr(first, name), getattr(other, name)
        if mine != its:
            return f"its {name} is {its!r}, and not {mine!r}"
    for name in ("model", "architecture", "dtype", "wheels"):
        mine, its = first.plan.get(name), other.plan.get(name)
        if mine != its:
            return f"its plan's {name} is {_differing(its, mine)}, and not {_differing(mine, its)}"
    return ""


def _differing(one: object, other: object) -> str:
    """Of lists, what the other one has not."""
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return repr([each for each in one if each not in other])
    return repr(one)

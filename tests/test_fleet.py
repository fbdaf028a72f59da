"""The simulated fleet: that its step times are fitted to what was measured, and how routers do in it."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from statistics import fmean

import pytest
from fleet import simulate
from fleet_device import Device
from fleet_steps import Point, fit
from fleet_traffic import KINDS

LIMITS = {"blocks": 1000, "max_seqs": 128, "max_tokens": 2048}
KNOWN = Device(
    decode=((1, 4e-3), (8, 4.4e-3), (64, 6e-3), (128, 9e-3)),
    mixed=((16, 5e-3), (256, 6e-3), (512, 11e-3), (2048, 40e-3)),
    crowded=((64, 20e-3), (512, 21e-3), (2048, 42e-3)),
    context=5e-8,
    **LIMITS,
)


def points(seed: int, count: int) -> list[Point]:
    """Steps of the known device, as a machine would take them: some longer than others, and one in 50 much longer."""
    random, found = Random(seed), []
    for _ in range(count):
        decodes = random.choice((1, 2, 4, 8, 16, 32, 64, 128))
        prompt = random.choice((0, 0, 0, random.randrange(16, 1900)))
        decodes -= random.randrange(decodes) // 4
        context = decodes * random.randrange(100, 2000) + prompt
        seconds = KNOWN.seconds(decodes, prompt, context) * random.lognormvariate(0.0, 0.05)
        found.append(Point(decodes, prompt, context, seconds * (30 if random.random() < 0.02 else 1)))
    return found


def test_step_times_are_found_in_what_was_measured() -> None:
    device, near = fit(points(0, 4000), **LIMITS)
    assert near["error_p50"] < 0.05
    unseen = [one for one in points(1, 500) if one.seconds < 0.2]
    errors = [
        abs(device.seconds(*at) / KNOWN.seconds(*at) - 1)
        for one in unseen
        if (at := (one.decodes, one.prompt, one.context))
    ]
    assert fmean(errors) < 0.04
    assert max(errors) < 0.3


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="2 kinds of steps can't tell"):
        fit([Point(1, 0, 100, 0.004), Point(1, 64, 100, 0.005)], **LIMITS)


def test_what_was_measured_on_a_gpu_is_plausible() -> None:
    device = Device.load("qwen3-8b-h100")
    assert (
        4e-3 < device.seconds(1, 0, 200) < device.seconds(64, 0, 64 * 500) < device.seconds(128, 0, 128 * 1000) < 0.02
    )
    assert 0.1 < device.seconds(0, 8192, 8192) < 0.3


@pytest.mark.parametrize("kind", ["tenants", "one_prefix", "batch", "short"])
def test_prefix_aware_hits_nearly_as_often_as_one_cache(kind: str) -> None:
    """And keeps work even; round_robin does one of the two."""
    shape = replace(KINDS[kind], rate=8.0, sessions=1500)
    device = Device.load("qwen3-8b-h100")
    found = {router: simulate(device, 8, router, shape, slo=0.5, seed=7) for router in ("prefix_aware", "round_robin")}
    ours = found["prefix_aware"]
    assert ours["of_one_cache"] >= 0.9
    assert ours["of_one_cache"] > found["round_robin"]["of_one_cache"]
    assert ours["busiest"] <= 1.15

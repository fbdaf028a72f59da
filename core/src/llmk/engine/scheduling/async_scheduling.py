"""Asynchronous scheduling: how many steps are in flight, and why."""

from __future__ import annotations

from llmk.api import PlatformFacts

ASYNCHRONOUS = "asynchronous"
"""The feature of platforms whose devices run what they are issued asynchronously to the host."""


def why_asynchronous(platform: PlatformFacts) -> str:
    """Why steps on this platform run asynchronously to the host, in words; empty where they don't."""
    return f"{platform.label} runs steps asynchronously to the host" if ASYNCHRONOUS in platform.features else ""


OTHER_PROCESSES = "other processes run the steps"
"""Why steps of a model that several processes hold run asynchronously to the host."""


def choose_depth(wanted: int, asynchronous: str, stages: int = 1) -> tuple[int, str]:
    """Steps in flight and the reason: the value of ``engine.steps_in_flight``, or where that is 0, two if steps run
    asynchronously to the host (``asynchronous`` says why), so that it prepares the next one meanwhile; with several
    pipeline ``stages``, one for each of them and the next one."""
    if wanted:
        return wanted, "engine.steps_in_flight"
    if stages > 1:
        return stages + 1, f"{stages} stages compute a step each"
    return (2, asynchronous) if asynchronous else (1, "the host itself runs the steps, so there is nothing to overlap")

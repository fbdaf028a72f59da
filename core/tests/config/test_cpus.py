"""How many CPUs this process may use."""

from __future__ import annotations

import os

from llmk.config.cpus import usable


def test_follows_the_affinity_mask() -> None:
    before = os.sched_getaffinity(0)
    assert usable() == len(before)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert usable() == 1
    finally:
        os.sched_setaffinity(0, before)

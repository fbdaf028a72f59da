"""What a model that is spread over the nodes of a Ray cluster must do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest
from ray_cluster import Nodes
from ray_cluster import spread as over
from served import until
from spread import answers, check, make, tight

from llmk import LLM
from llmk.api import EngineDead


def check_spread(folder: Path, cluster: Nodes, family: str, tensor: int, pipeline: int) -> None:
    """Two ranks, each on a node of its own: the answers of one process, what they say of themselves, and the end of one
    by its name."""
    checkpoint = make(folder, family)
    with LLM(str(checkpoint), **tight(family)) as llm:
        expected = answers(llm)
    with LLM(str(checkpoint), **tight(family), **over(cluster, tensor, pipeline)) as llm:
        core: Any = llm._core
        places = core.runner._placed.places
        assert len({place.address for place in places}) == 2
        check(answers(llm), expected)
        assert core.answers()
        ranks = {rank.rank: rank for rank in core.runner.take_ranks()}
        assert [ranks[number].node for number in (0, 1)] == [place.node for place in places]
        assert all(
            rank.steps > 10 and rank.step_seconds > 0 and rank.resident_bytes > 1 << 20 for rank in ranks.values()
        )
        pids = core.runner.pids
        psutil.Process(pids[1]).kill()
        with pytest.raises(EngineDead, match=r"process 1 \(.*\) on \S+ \([\d.]+\) was killed by SIGKILL"):
            until(lambda: not core.answers() and False, timeout=10)
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids), timeout=10)

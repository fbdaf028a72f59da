"""Where ranks go: the launcher's places, and the platform's say in which rank has which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from spread import answers, check, make, tight

from llmk import LLM
from llmk.api import PluginError, RankPlace, RankRules
from llmk.engine.processes.ranks import launching
from llmk.engine.processes.ranks.launching import Placed


@dataclass(frozen=True)
class LastFirst(RankRules):
    """As on a machine whose first place must hold the last stage."""

    def rank_at(self, place: int, tensor: int, pipeline: int) -> int:
        stage, tensor_rank = divmod(place, tensor)
        return (pipeline - 1 - stage) * tensor + tensor_rank


@dataclass(frozen=True)
class Crowded(RankRules):
    """Puts all ranks in one place."""

    def rank_at(self, place: int, tensor: int, pipeline: int) -> int:
        return 0


def placed(rules: RankRules, places: Sequence[RankPlace], tensor: int, pipeline: int, *, shared: bool = False) -> Any:
    spec: Any = SimpleNamespace(id="p", ranks=rules)
    plan: Any = SimpleNamespace(platform_id="p", tensor=tensor, pipeline=pipeline, num_ranks=tensor * pipeline)
    facts: Any = SimpleNamespace(shared_device=shared)
    registry: Any = SimpleNamespace(platforms=[SimpleNamespace(spec=spec)])
    boot: Any = SimpleNamespace(plan=plan, registry=registry, platform_facts=facts)
    launcher: Any = SimpleNamespace(place=lambda: places, address="10.0.0.1")
    return boot, Placed.by(boot, launcher)


PLACES = [RankPlace(node=node, address=node, index=index) for node in ("a", "b") for index in range(2)]


def test_a_platform_says_which_rank_has_which_place() -> None:
    _, usual = placed(RankRules(), PLACES, 2, 2)
    assert [place.node for place in usual.places] == ["a", "a", "b", "b"]
    _, turned = placed(LastFirst(), PLACES, 2, 2)
    assert [place.node for place in turned.places] == ["b", "b", "a", "a"]
    assert [turned.rank(number) for number in range(4)] == [2, 3, 0, 1]


def test_what_neither_may_say() -> None:
    with pytest.raises(PluginError, match=r"p puts ranks \[0, 0, 0, 0\] in 4 places, where each must be once"):
        placed(Crowded(), PLACES, 2, 2)
    with pytest.raises(PluginError, match="the launcher has 3 places for 4 ranks"):
        placed(RankRules(), PLACES[:3], 2, 2)


def test_who_shares_a_device() -> None:
    boot, apart = placed(RankRules(), PLACES, 4, 1)
    assert [apart.sharing(boot, rank) for rank in range(4)] == [{0}, {1}, {2}, {3}]
    boot, together = placed(RankRules(), PLACES, 4, 1, shared=True)
    assert [together.sharing(boot, rank) for rank in (0, 3)] == [{0, 1}, {2, 3}]


def test_the_environment_names_devices_and_interface() -> None:
    rules = RankRules(network=("SOCKET_IFNAME",), visible=("VISIBLE",))
    assert rules.environment((), "") == {}
    assert rules.environment(("3", "1"), "eth1") == {"SOCKET_IFNAME": "eth1", "VISIBLE": "3,1"}


@pytest.mark.slow
def test_stages_in_turned_places_answer_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = make(tmp_path, "mixtral")
    with LLM(str(checkpoint), **tight("mixtral")) as llm:
        expected = answers(llm)
    turned = replace(LastFirst(), network=("GLOO_SOCKET_IFNAME",))
    monkeypatch.setattr(launching, "_rules", lambda boot: turned)
    with LLM(str(checkpoint), **tight("mixtral"), parallel={"pipeline": 2}) as llm:
        executor: Any = llm._core.runner
        assert [place.index for place in executor._placed.places] == [1, 0]
        check(answers(llm), expected)

"""How replicas divide a machine, and which router a plan chooses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
from wheelhouse import Wheelhouse

from llmk.api import PlatformFacts, SelectionError
from llmk.config import Settings, cpus, load
from llmk.planning.choices.policies import choose_router, router_of
from llmk.planning.replicas import replica_problems, share_of

GPU = PlatformFacts(name="acme", arch="a", device_type="acme", num_devices=8)
SHARED = replace(GPU, num_devices=1, shared_device=True)
CODE = """
@hookimpl
def llmk_routers():
    return [RouterSpec(id="{name}.router", name="{spoken}", implementation="plug_{name}:Router")]
"""


@dataclass(frozen=True)
class Boot:
    """What is divided."""

    settings: Settings
    platform_facts: PlatformFacts
    plan: Any
    first_device: int = 0
    cpus: frozenset[int] = frozenset()


def boot(platform: PlatformFacts, ranks: int = 1, **values: Any) -> Any:
    flags = {name.replace("__", "."): value for name, value in values.items()}
    return Boot(load(flags, environ={}), platform, SimpleNamespace(num_ranks=ranks, choices=()))


def test_replicas_get_devices_of_their_own() -> None:
    whole = boot(GPU, ranks=2, replicas__count=3, parallel__tensor=2)
    shares = [share_of(whole, number, num_blocks=70) for number in range(3)]
    assert [share.first_device for share in shares] == [0, 2, 4]
    assert all(share.settings is whole.settings and not share.cpus for share in shares)


def test_a_device_that_all_share_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpus, "in_order", lambda *_: (0, 4, 1, 2, 3, 5, 6))
    whole = boot(SHARED, replicas__count=2, platform__threads=5, cache__memory_share=0.8)
    first, second = share_of(whole, 0), share_of(whole, 1, num_blocks=70)
    assert (first.cpus, second.cpus) == (frozenset({0, 1, 4}), frozenset({2, 3, 5, 6}))
    assert first.settings.config.cache.memory_share == pytest.approx(0.4)
    assert (first.settings.config.platform.threads, first.first_device) == (2, 0)
    assert second.settings.config.cache.num_blocks == 70, "all have caches of one size"


def test_one_engine_has_it_all() -> None:
    whole = boot(SHARED)
    assert share_of(whole, 0) is whole


def test_too_few_devices_are_named_with_what_fits() -> None:
    config = load({"replicas.count": 5, "parallel.tensor": 2}, environ={}).config
    (problem,) = replica_problems(config, GPU)
    assert problem.path == "replicas.count"
    assert "5 replicas of 2 processes need a device each" in problem.message
    assert problem.fix == "lower --replicas to 4"
    assert not list(replica_problems(config, SHARED))
    assert not list(replica_problems(config, replace(GPU, num_devices=0)))
    assert not list(replica_problems(load({"replicas.count": 4}, environ={}).config, GPU))


@pytest.mark.hook("llmk_routers")
def test_a_router_is_chosen_where_there_are_replicas_and_only_by_name(wheelhouse: Wheelhouse) -> None:
    wheelhouse.install("acme", CODE.format(name="acme", spoken="near"))

    def choose(**values: Any) -> Any:
        flags = {name.replace("__", "."): value for name, value in values.items()}
        return choose_router(wheelhouse.discover(), load(flags, environ={}).config, {})

    assert choose(select__router__use="near") is None
    built_in = choose(replicas__count=2)
    assert (built_in.kind, built_in.site, built_in.id) == ("router", "replicas", "core.built_in")
    assert {rejection.id for rejection in built_in.rejected} == {"acme.router"}
    named = choose(replicas__count=2, select__router__use="near")
    assert named.id == "acme.router"
    assert router_of((named,)) is named
    assert router_of(()) is None
    with pytest.raises(SelectionError, match=r"\[select\.router\] names 'far'"):
        choose(replicas__count=2, select__router__use="far")

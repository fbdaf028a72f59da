"""Facts of one process's share, and configurations that can't be shared out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from wheelhouse import MODEL, PLATFORM, Wheelhouse

from llmk.api import (
    AttentionFacts,
    ConfigError,
    LinearFacts,
    ModelFacts,
    MoEFacts,
    OpFacts,
    Plan,
    PlatformFacts,
    RecurrentFacts,
    StateTensor,
    sharded,
)
from llmk.api.sharding import parallel_problems
from llmk.config import load
from llmk.planning.boot import boot
from llmk.planning.report import render_table

STATE = RecurrentFacts(
    site="scan",
    num_layers=3,
    tensors=(StateTensor("conv", (3, 48), "bfloat16"), StateTensor("heads", (16, 5, 7), "float32")),
    units=8,
    divided=(1, 0),
)
WHOLE = replace(STATE, site="whole", units=0, divided=())
FACTS = ModelFacts(
    architecture="ToyForCausalLM",
    model="toy.toy",
    num_layers=3,
    hidden_size=64,
    vocab_size=101,
    max_model_len=128,
    dtype="float32",
    num_parameters=1000,
    attention=(AttentionFacts(num_layers=3, num_heads=8, num_kv_heads=2, head_dim=16),),
    recurrent=(STATE, WHOLE),
    linear=(
        LinearFacts(site="qkv", in_features=64, out_features=192, parallel="column", units=((8, 16), (2, 16), (2, 16))),
        LinearFacts(site="out", in_features=128, out_features=64, parallel="row"),
        LinearFacts(site="up", in_features=64, out_features=96, parallel="column"),
        LinearFacts(site="router", in_features=64, out_features=4),
        LinearFacts(site="head", in_features=64, out_features=101, parallel="vocab"),
    ),
    moe=(MoEFacts(site="moe", num_experts=4, top_k=2, hidden_size=64, intermediate_size=32),),
    ops=(
        OpFacts(site="norm", op="rms_norm", facts={"size": 64}),
        OpFacts(
            site="write",
            op="qk_norm_rope_write_kv",
            facts={"num_heads": 8, "num_kv_heads": 2, "head_dim": 16},
            divided=("num_heads", "num_kv_heads"),
        ),
    ),
    parallel=("tensor", "pipeline"),
)


def test_a_process_alone_has_everything() -> None:
    assert sharded(FACTS, 1) is FACTS


@pytest.mark.parametrize(
    ("tensor", "heads", "kv_heads", "shapes", "inner"),
    [
        (2, 4, 1, {"qkv": (64, 96), "out": (64, 64), "up": (64, 48), "router": (64, 4), "head": (64, 51)}, 16),
        (4, 2, 1, {"qkv": (64, 64), "out": (32, 64), "up": (64, 24), "router": (64, 4), "head": (64, 26)}, 8),
        (8, 1, 1, {"qkv": (64, 48), "out": (16, 64), "up": (64, 12), "router": (64, 4), "head": (64, 13)}, 4),
    ],
)
def test_a_share(tensor: int, heads: int, kv_heads: int, shapes: dict[str, tuple[int, int]], inner: int) -> None:
    """Key and value heads are repeated where there are fewer than processes; the vocabulary is padded."""
    share = sharded(FACTS, tensor)
    (attention,) = share.attention
    assert (attention.num_heads, attention.num_kv_heads, attention.head_dim) == (heads, kv_heads, 16)
    assert {site.site: (site.in_features, site.out_features) for site in share.linear} == shapes
    assert share.moe[0].intermediate_size == inner
    state, whole = share.recurrent
    assert [tensor.shape for tensor in state.tensors] == [(3, 48 // tensor), (16 // tensor, 5, 7)]
    assert whole is WHOLE
    assert [op.facts for op in share.ops] == [
        {"size": 64},
        {"num_heads": heads, "num_kv_heads": kv_heads, "head_dim": 16},
    ]
    assert (share.vocab_size, share.num_layers, share.num_parameters) == (101, 3, 1000)


def test_groups_of_heads_stay_whole() -> None:
    """Those of a recurrent layer are not repeated where there are fewer than processes, and named where they don't
    divide, though the heads do."""
    facts = replace(FACTS, recurrent=(replace(STATE, units=2), WHOLE))
    box = PlatformFacts(name="box", arch="b2", device_type="cpu", shared_device=True)
    assert not parallel_problems(facts, box, 2, 1)
    (problem,) = parallel_problems(facts, box, 4, 1)
    assert problem.message == "2 groups of heads of scan can't be divided evenly between 4 processes"
    assert problem.fix == "set parallel.tensor to one of 1, 2, or use parallel.pipeline"


@pytest.fixture
def house(wheelhouse: Wheelhouse) -> Wheelhouse:
    """A platform with four devices, and a family that can be cut."""
    wheelhouse.install("box", PLATFORM.replace('arch="b2", ', 'arch="b2", num_devices=4, '))
    can_be_cut = MODEL.replace("ops=OPS)", 'ops=OPS, parallel=("tensor", "pipeline"))')
    wheelhouse.install("toy", can_be_cut.replace("out_features=128)", 'out_features=128, parallel="column")'))
    return wheelhouse


def plan(house: Wheelhouse, folder: Path, **parallel: int) -> Plan:
    (folder / "config.json").write_text(json.dumps({"architectures": ["ToyForCausalLM"]}))
    flags: dict[str, Any] = {f"parallel.{name}": size for name, size in parallel.items()}
    settings = load({**house.flags(), **flags, "model.path": str(folder)}, environ={}, cwd=house.folder)
    return boot(settings, verify=False).plan


def test_the_plan_is_for_one_process(house: Wheelhouse, tmp_path: Path) -> None:
    found = plan(house, tmp_path, tensor=2, pipeline=2)
    query: Any = found.choice("linear", "up").query
    assert (query.in_features, query.out_features) == (64, 64)
    assert (found.tensor, found.pipeline, found.num_ranks) == (2, 2, 4)
    assert [found.ranks_on_same_device(rank) for rank in range(4)] == [range(rank, 4, 4) for rank in range(4)]
    assert "parallel  2 x 2 processes (tensor x pipeline)" in render_table(found)
    assert found.fingerprint != plan(house, tmp_path, tensor=4).fingerprint


@pytest.mark.parametrize(
    ("parallel", "message", "hint"),
    [
        ({"tensor": 3}, r"4 heads of attention, 2 key and value .* divided evenly between 3", "one of 1, 2, 4"),
        ({"pipeline": 3}, r"parallel.pipeline \(set by flag .*\): 2 layers can't be divided between 3", "to 2 or less"),
        ({"tensor": 4, "pipeline": 2}, r"4 x 2 processes need a device each, and box/b2 has 4", "lower"),
    ],
)
def test_what_cannot_be_shared_out(
    house: Wheelhouse, tmp_path: Path, parallel: dict[str, int], message: str, hint: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        plan(house, tmp_path, **parallel)
    assert hint in caught.value.hint


@pytest.mark.parametrize("way", ["tensor", "pipeline"])
def test_a_family_that_does_not_say_so_is_not_cut(wheelhouse: Wheelhouse, tmp_path: Path, way: str) -> None:
    wheelhouse.install_box()
    message = rf"toy\.toy does not support parallel\.{way} = 2 for ToyForCausalLM"
    with pytest.raises(ConfigError, match=message) as caught:
        plan(wheelhouse, tmp_path, **{way: 2})
    assert f"set parallel.{way} to 1" in caught.value.hint

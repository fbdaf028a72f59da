"""The resolver takes these kernels where a platform publishes Triton and vouches for the distribution, only there."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmk.api import Plan
from llmk.config import load
from llmk.planning.boot import boot

sys.path.insert(0, str(Path(__file__).parents[3] / "core/tests/kernel"))

from wheelhouse import Wheelhouse

PLATFORM = """
BOX = PlatformFacts(
    name="box", arch="b1", device_type="cpu", features=frozenset({features}), dtypes=("bfloat16", "float32"),
)

@hookimpl
def llmk_platforms():
    return [PlatformSpec(
        id="box.box", name="box", implementation="plug_box:BOX", rank=99, probe=lambda host: Probe(OK, BOX),
        vouches={vouches},
    )]
"""
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 320,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "torch_dtype": "bfloat16",
}
SERVED = {
    ("attention", "attention"),
    ("op", "attention.whole"),
    ("op", "rms_norm"),
    ("op", "add_rms_norm"),
    ("op", "embedding"),
    ("op", "norm_qkv"),
    ("op", "norm_gate_up_silu"),
    *(("linear", site) for site in ("qkv", "out", "gate_up", "down", "lm_head")),
    *(("op", op) for op in ("sample", "logprobs", "apply_penalties", "apply_mask")),
    *(("op", op) for op in ("update_rows", "build_step", "compute_slot_mapping", "append_tokens")),
}


@pytest.fixture
def house(tmp_path: Path) -> Iterator[Wheelhouse]:
    """With an installed platform, in addition to the core."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(CONFIG))
    house = Wheelhouse(tmp_path / "site")
    yield house
    house.close()


def plan(house: Wheelhouse, platform: str, **flags: object) -> Plan:
    named = {name.replace("__", "."): value for name, value in flags.items()}
    settings = load({"model.path": str(house.folder.parent / "model"), "platform.use": platform, **named}, environ={})
    return boot(settings, verify=False).plan


def by_triton(plan: Plan) -> set[tuple[str, str]]:
    return {(choice.kind, choice.site) for choice in plan.choices if choice.id.startswith("triton.")}


def test_a_platform_with_triton_that_vouches_gets_them(house: Wheelhouse) -> None:
    house.install("box", PLATFORM.format(features='{"triton"}', vouches='("llmk-triton",)'))
    chosen = plan(house, "box")
    assert by_triton(chosen) == SERVED
    (gated,) = (part for part in chosen.choice("op", "norm_gate_up_silu").parts if part.op == "gate_up_silu")
    assert {part.op: part.id for part in gated.parts} == {"silu_and_mul": "triton.silu_and_mul"}
    ends = {
        piece.id: piece.stop
        for choice in chosen.choice("op", "norm_gate_up_silu").with_parts()
        for piece in choice.pieces
    }
    assert ends["triton.add_rms_norm_gate_up_silu"] < ends["triton.gate_up_silu"] < ends["reference.gate_up_silu"]
    assert dict(chosen.wheels)["llmk-triton"]


def test_moe_sites_get_them_too(house: Wheelhouse) -> None:
    house.install("box", PLATFORM.format(features='{"triton"}', vouches='("llmk-triton",)'))
    sparse = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
    changed = CONFIG | sparse | {"architectures": ["Qwen3MoeForCausalLM"]}
    (house.folder.parent / "model/config.json").write_text(json.dumps(changed))
    choices = plan(house, "box").choices
    assert {choice.id for choice in choices if choice.kind == "moe"} == {"triton.fused_moe"}


def test_the_fused_ops_go_with_the_attention(house: Wheelhouse) -> None:
    house.install("box", PLATFORM.format(features='{"triton"}', vouches='("llmk-triton",)'))
    chosen = plan(house, "box", select__attention__use="reference.attention")
    whole = chosen.choice("op", "attention.whole")
    (write,) = whole.parts
    assert (whole.id, write.id) == ("reference.qk_norm_rope_attention", "reference.qk_norm_rope_write_kv")
    assert {part.op: part.id for part in write.parts} == {"rms_norm": "triton.rms_norm", "rope": "reference.rope"}


@pytest.mark.parametrize(
    ("features", "vouches", "code"),
    [('{"triton"}', "()", "not_vouched"), ("()", '("llmk-triton",)', "missing_feature")],
)
def test_other_platforms_refuse_with_reasons(house: Wheelhouse, features: str, vouches: str, code: str) -> None:
    house.install("box", PLATFORM.format(features=features, vouches=vouches))
    chosen = plan(house, "box")
    assert by_triton(chosen) == set()
    attention = chosen.choice("attention", "attention")
    (rejection,) = (r for r in attention.rejected if r.id == "triton.attention")
    assert [reason.code for reason in rejection.reasons] == [code]


def test_on_a_cpu_they_are_not_chosen(house: Wheelhouse) -> None:
    assert by_triton(plan(house, "cpu")) == set()

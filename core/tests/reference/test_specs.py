"""The plugin module: registers through the public hooks, without torch, things that are there."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from typing import Any

import pluggy
import pytest

from llmk.api import KernelSpec, LinearQuery, MoEQuery, PlatformFacts, Tier, hooks
from llmk.api.specs import GIVEN_PARTS
from llmk.reference import specs

HOOKS = ("llmk_attention_backends", "llmk_linear_kernels", "llmk_moe_kernels", "llmk_ops")
TWO_KERNELS = {"state_space_scan", "gated_delta_rule"}
FACTS = PlatformFacts(name="test", arch="any", device_type="cpu")


def registered() -> list[KernelSpec]:
    manager = pluggy.PluginManager("llmk")
    manager.add_hookspecs(hooks)
    manager.register(specs)
    manager.check_pending()
    found = [spec for hook in HOOKS for specs in getattr(manager.hook, hook)() for spec in specs]
    return [spec for spec in found if isinstance(spec, KernelSpec)]


SPECS = registered()


def test_importing_the_plugin_leaves_torch_unimported() -> None:
    code = "import sys, llmk.reference.specs as s; s.llmk_ops(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_ids_are_unique_and_the_plugins_own() -> None:
    ids = [spec.id for spec in SPECS]
    assert len(set(ids)) == len(ids)
    assert all(name.startswith("reference.") for name in ids)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.id)
def test_every_spec_names_what_can_be_loaded(spec: KernelSpec) -> None:
    for where in filter(None, (spec.implementation, spec.prepare)):
        module, _, attribute = where.partition(":")
        assert getattr(import_module(module), attribute).__doc__
    assert spec.tier is Tier.REFERENCE
    assert spec.summary


def test_every_nondeterministic_kernel_has_a_deterministic_variant() -> None:
    by_id = {spec.id: spec for spec in SPECS}
    plain = [spec for spec in SPECS if not spec.deterministic]
    assert {spec.kind for spec in plain} == {"attention", "linear", "moe", "op"}
    for spec in plain:
        twin = by_id[f"{spec.id}_invariant"]
        assert (twin.kind, twin.op, twin.deterministic) == (spec.kind, spec.op, True)
        assert twin.score < spec.score


def test_ops_are_all_there() -> None:
    assert {spec.op for spec in SPECS if spec.kind == "op"} == {
        "rms_norm",
        "add_rms_norm",
        "rms_norm_add",
        "layer_norm",
        "add_layer_norm",
        "xielu",
        "rope",
        "rope_interleaved",
        "per_head_matmul",
        "norm_rope_write_latent",
        "latent_attention",
        "qk_norm_rope_write_kv",
        "silu_and_mul",
        "gelu_and_mul",
        "gelu_tanh_and_mul",
        "gate_up_silu",
        "gate_up_gelu",
        "gate_up_gelu_tanh",
        "activate",
        "softcap",
        "sigmoid_gate",
        "causal_conv",
        "short_conv",
        "selective_scan",
        "gated_rms_norm",
        "state_space_scan",
        "gated_delta_rule",
        "state_space_mixer",
        "gated_delta_net",
        "lightning_attention",
        "select_tokens",
        "selected_attention",
        "selected_latent_attention",
        "select_entries",
        "compressed_attention",
        "qk_norm_rope_attention",
        "add_rms_norm_fp32_residual",
        "sandwich_norm",
        "scaled_embedding",
        "embedding",
        "apply_penalties",
        "apply_bias",
        "match_suffixes",
        "allow_tokens",
        "apply_mask",
        "mask_top_k_top_p_min_p",
        "sample",
        "logprobs",
        "update_rows",
        "build_step",
        "compute_slot_mapping",
        "append_tokens",
        "accept_drafts",
        "add_adapters",
        "add_rms_norm_linear",
        "add_rms_norm_router",
        "add_rms_norm_gate_up_silu",
    }


def test_parts_are_ops_or_the_sites_own_kernels() -> None:
    ops = {spec.op for spec in SPECS if spec.kind == "op"}
    composites = [spec for spec in SPECS if spec.parts]
    assert len(composites) == 20
    for spec in composites:
        assert set(spec.parts) <= ops | set(GIVEN_PARTS)


@pytest.mark.parametrize(
    "weight_format", ["plain", "int8_channel", "int8_group", "int4_group", "fp8_tensor", "fp8_channel", "fp8_block"]
)
def test_one_deterministic_linear_kernel_serves_each_format(weight_format: str) -> None:
    query = LinearQuery(
        platform=FACTS, site="qkv", dtype="float32", in_features=8, out_features=8, weight_format=weight_format
    )
    serving = [spec for spec in SPECS if spec.kind == "linear" and spec.supports(query)]
    assert [spec.deterministic for spec in serving].count(True) == 1
    assert len(serving) == (2 if weight_format == "plain" else 1)
    refusing = next(spec for spec in SPECS if spec.kind == "linear" and not spec.supports(query))
    reason = refusing.supports(query).reasons[0]
    assert (reason.code, reason.wanted) == ("weight_format", weight_format)


def moe_reasons(**changes: Any) -> list[str]:
    """Codes of the reasons why experts of which each token takes 2 of 8 are not served."""
    facts: dict[str, Any] = {"num_experts": 8, "top_k": 2, "hidden_size": 8, "intermediate_size": 8}
    spec = next(spec for spec in SPECS if spec.kind == "moe")
    query = MoEQuery(platform=FACTS, site="moe", dtype="float32", **(facts | changes))
    return [reason.code for reason in spec.supports(query).reasons]


def test_moe_says_which_activations_scorings_and_formats_it_lacks() -> None:
    assert moe_reasons() == []
    lacking = {"activation": "relu", "scoring": "tanh", "weight_format": "mxfp4", "group_scoring": "mean"}
    assert moe_reasons(**lacking) == ["weight_format", "activation", "scoring", "group_scoring"]


@pytest.mark.parametrize(
    ("groups", "served"),
    [
        ({"num_groups": 4, "top_groups": 1}, True),
        ({"num_groups": 4, "top_groups": 1, "group_scoring": "top2_sum"}, True),
        ({"num_groups": 8, "top_groups": 2}, True),
        ({"num_groups": 8, "top_groups": 2, "group_scoring": "top2_sum"}, False),
        ({"num_groups": 8, "top_groups": 1}, False),
        ({"num_groups": 3, "top_groups": 2}, False),
        ({"num_groups": 2, "top_groups": 3, "top_k": 9}, False),
    ],
)
def test_moe_needs_equal_groups_that_hold_enough_experts(groups: dict[str, Any], served: bool) -> None:
    assert moe_reasons(**groups) == ([] if served else ["num_groups"])


def test_declared_activations_and_scorings_are_those_that_exist() -> None:
    moe = import_module("llmk.reference.moe")
    assert set(specs._SCORINGS) == set(moe.SCORINGS)
    assert set(specs._GROUP_SCORINGS) == set(moe._GROUP_SCORING)
    activations = import_module("llmk.reference.activations").ACTIVATIONS
    assert set(specs._ACTIVATIONS) == set(activations)

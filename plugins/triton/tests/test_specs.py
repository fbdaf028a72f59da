"""What the plugin declares: what it names can be loaded, and what it can't serve it refuses with reasons."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from paged import attention_query
from triton.backends.compiler import GPUTarget

from llmk.api import KernelSpec, LinearQuery, MoEQuery, OpContract, OpQuery, PlatformFacts, Tier, match
from llmk.api.matching import facts_to_know
from llmk.kernel.loader import load_object
from llmk.reference import specs as reference
from llmk_triton.attention.backend import LAYOUT
from llmk_triton.attention.int8_cache import LAYOUT as INT8_LAYOUT
from llmk_triton.latent.backend import LAYOUT as LATENT_LAYOUT
from llmk_triton.moe.specs import supports_library
from llmk_triton.moe.tiles import choose_tiles
from llmk_triton.specs import llmk_attention_backends, llmk_linear_kernels, llmk_moe_kernels, llmk_ops

GPU = PlatformFacts(name="some", arch="gpu", device_type="gpu", features=frozenset({"triton"}), dtypes=("bfloat16",))
WITH_FP8 = replace(GPU, features=GPU.features | {"fp8"})
WIDENING = replace(GPU, features=GPU.features | {"fp8_fnuz"})
"""Devices that multiply another fp8 than checkpoints have, and convert theirs."""
PLAIN = PlatformFacts(name="some", arch="cpu", device_type="cpu")
REFERENCES = [spec for spec in reference.llmk_ops() if isinstance(spec, KernelSpec)]


CONTRACTS = [spec for spec in (*reference.llmk_ops(), *llmk_ops()) if isinstance(spec, OpContract)]


def specs() -> list[KernelSpec]:
    """All that need Triton."""
    ops = [spec for spec in llmk_ops() if isinstance(spec, KernelSpec) and spec.tier > Tier.REFERENCE]
    return [*llmk_attention_backends(), *llmk_linear_kernels(), *llmk_moe_kernels(), *ops]


def reasons(spec: KernelSpec, query: Any) -> list[str]:
    return [reason.code for reason in match(spec, query).reasons]


@pytest.mark.parametrize("spec", specs(), ids=lambda spec: spec.id)
def test_every_spec_names_what_there_is(spec: KernelSpec) -> None:
    assert callable(load_object(spec.implementation, plugin="llmk-triton"))
    apart = spec.id.endswith(("_tma", "_padded"))
    assert (spec.tier, spec.jit, spec.needs.features) == (Tier.PORTABLE, True, ("triton",))
    assert bool(spec.opt_in) == apart
    if spec.kind == "op":
        assert spec.id.removesuffix("_tma").removesuffix("_by_token") == f"triton.{spec.op}"
        assert spec.op in {contract.op for contract in CONTRACTS}, "an op without a contract"


def test_the_layout_is_the_backends() -> None:
    layouts = {spec.id: spec.layout for spec in llmk_attention_backends()}
    assert layouts.pop("triton.attention_latent") == LATENT_LAYOUT
    assert layouts.pop("triton.attention_int8") == INT8_LAYOUT
    assert set(layouts.values()) == {LAYOUT}


def test_attention_says_what_it_can_do() -> None:
    spec, *_ = llmk_attention_backends()
    able: dict[str, Any] = {"platform": GPU}
    for changes in (
        {},
        {"sliding_window": 8, "softcap": 30.0, "sinks": True},
        {"sliding_window": 8, "chunked": True},
        {"dtype": "bfloat16", "cache_dtype": "bfloat16", "head_dim": 512},
        {"deterministic": True},
        {"head_dim": 256},
        {"cache_dtype": "float8_e4m3fn", "platform": WITH_FP8},
    ):
        assert match(spec, attention_query(**able | changes))
    for changes, code in (
        ({"platform": PLAIN}, "missing_feature"),
        ({"causal": False}, "not_understood"),
        ({"cache_dtype": "float8_e5m2"}, "cache_dtype"),
        ({"cache_dtype": "float8_e4m3fn"}, "missing_feature"),
        ({"latent_dim": 16}, "not_understood"),
        ({"head_dim": 576}, "head_dim"),
        ({"scale": -0.1}, "scale"),
        ({"num_heads": 7}, "num_kv_heads"),
        ({"num_heads": 66}, "num_heads"),
        ({"dtype": "float64", "cache_dtype": "float32"}, "dtype"),
    ):
        assert reasons(spec, attention_query(**able | changes)) == [code]


def test_int8_attention_says_what_it_can_do() -> None:
    *_, spec, _ = llmk_attention_backends()
    able: dict[str, Any] = {"platform": GPU, "cache_dtype": "int8"}
    for changes in ({}, {"sliding_window": 8, "softcap": 30.0, "sinks": True}, {"deterministic": True}):
        assert match(spec, attention_query(**able | changes))
    for changes, code in (
        ({"cache_dtype": "int4"}, "cache_dtype"),
        ({"value_dim": 16}, "not_understood"),
        ({"head_dim": 25, "block_size": 1}, "block_size"),
        ({"head_dim": 576}, "head_dim"),
    ):
        assert reasons(spec, attention_query(**able | changes)) == [code]


def test_latent_attention_says_what_it_can_do() -> None:
    *_, spec = llmk_attention_backends()
    able: dict[str, Any] = {"platform": GPU, "dtype": "bfloat16", "cache_dtype": "bfloat16", "num_kv_heads": 1}
    able |= {"num_heads": 128, "head_dim": 576, "latent_dim": 512}
    for changes in (
        {},
        {"num_heads": 1, "head_dim": 256, "latent_dim": 256},
        {"platform": replace(WITH_FP8, arch="gfx942"), "cache_dtype": "float8_e4m3fn"},
    ):
        assert match(spec, attention_query(**able | changes))
    for changes, code in (
        ({"platform": PLAIN}, "missing_feature"),
        ({"platform": replace(GPU, arch="gfx1100")}, "arch"),
        ({"latent_dim": None}, "latent_dim"),
        ({"head_dim": 1088, "latent_dim": 1024}, "latent_dim"),
        ({"head_dim": 640}, "latent_dim"),
        ({"num_kv_heads": 2}, "num_kv_heads"),
        ({"cache_dtype": "float8_e5m2"}, "cache_dtype"),
        ({"scale": 0.0}, "scale"),
        ({"sliding_window": 8}, "not_understood"),
        ({"dtype": "float32"}, "dtype"),
        ({"deterministic": True}, "not_deterministic"),
    ):
        assert reasons(spec, attention_query(**able | changes)) == [code]


def test_the_op_over_latent_rows_says_what_it_can_do() -> None:
    (spec,) = (spec for spec in llmk_ops() if spec.op == "latent_attention")

    def query(attention: str = "triton.attention_latent", key: int = 128) -> OpQuery:
        given: dict[str, Any] = {"attention": attention, "facts": {"qk_nope_head_dim": key}}
        return OpQuery(platform=GPU, site="whole", dtype="bfloat16", op=spec.op, **given)

    assert match(spec, query())
    assert reasons(spec, query("reference.attention")) == ["attention"]
    assert reasons(spec, query(key=320)) == ["qk_nope_head_dim"]


def test_attention_to_selected_tokens_says_what_it_can_do() -> None:
    by_op = {spec.op: spec for spec in llmk_ops()}

    def query(op: str, arch: str = "sm_90", **facts: int) -> OpQuery:
        return OpQuery(platform=replace(GPU, arch=arch), site=op, dtype="bfloat16", op=op, facts=facts)

    assert match(by_op["select_tokens"], query("select_tokens", num_heads=64, head_dim=128, top_k=2048))
    assert reasons(by_op["select_tokens"], query("select_tokens", num_heads=256, head_dim=128)) == ["num_heads"]
    assert reasons(by_op["select_tokens"], query("select_tokens", num_heads=64, head_dim=256)) == ["head_dim"]
    assert reasons(by_op["select_tokens"], query("select_tokens", arch="gfx1100")) == ["arch"]
    rows = {"num_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    assert match(by_op["selected_attention"], query("selected_attention", **rows))
    for wide in ({"kv_lora_rank": 1024}, {"qk_rope_head_dim": 128}):
        assert reasons(by_op["selected_attention"], query("selected_attention", **rows | wide)) == ["kv_lora_rank"]


def test_specialized_attention_says_what_it_can_do() -> None:
    _, spec, padded, *_ = llmk_attention_backends()
    able: dict[str, Any] = {"platform": replace(GPU, arch="sm_90"), "num_heads": 8, "num_kv_heads": 2}
    able |= {"dtype": "bfloat16", "cache_dtype": "bfloat16", "head_dim": 128, "block_size": 16}
    for changes in (
        {},
        {"sliding_window": 4096, "softcap": 50.0, "sinks": True},
        {"head_dim": 256, "block_size": 64},
    ):
        assert match(spec, attention_query(**able | changes))
    for changes, code in (
        ({"platform": replace(GPU, arch="sm_100")}, "arch"),
        ({"head_dim": 96}, "head_dim"),
        ({"dtype": "float32", "cache_dtype": "float32"}, "dtype"),
        ({"cache_dtype": "float16"}, "cache_dtype"),
        ({"block_size": 4}, "block_size"),
        ({"num_heads": 10}, "num_heads"),
        ({"sliding_window": 128}, "sliding_window"),
        ({"deterministic": True}, "not_deterministic"),
    ):
        assert reasons(spec, attention_query(**able | changes)) == [code]
    assert padded.opt_in
    whole = (1, 2, 4, 8, 16, 32, 64, 7, *(14, 15), *range(28, 32), *range(56, 64))
    others = (3, 6, *(12, 13), *range(24, 28), *range(48, 56))
    for group in range(1, 66):
        query = attention_query(**able | {"num_heads": 2 * group})
        assert (bool(match(spec, query)), bool(match(padded, query))) == (group in whole, group in others), group
    for group in range(1, 33):
        query = attention_query(**able | {"num_heads": 2 * group, "head_dim": 256})
        assert (bool(match(spec, query)), bool(match(padded, query))) == (group in (*whole, *others), False), group


def test_library_experts_say_what_they_can_do() -> None:
    _, spec, *_ = llmk_moe_kernels()
    able: dict[str, Any] = {"platform": replace(GPU, arch="sm_90"), "dtype": "bfloat16", "site": "experts", "top_k": 2}
    able |= {"num_experts": 8, "hidden_size": 4096, "intermediate_size": 14336}
    large = {"num_experts": 16, "top_k": 1}
    for changes in ({}, large, {"hidden_size": 2048, "intermediate_size": 1024}, {"gated": False, "scaling": 2.0}):
        assert match(spec, MoEQuery(**able | changes))
    for changes, code in (
        ({"platform": replace(GPU, arch="sm_80")}, "arch"),
        ({"dtype": "float16"}, "dtype"),
        ({"bias": True}, "bias"),
        ({"intermediate_size": 14340}, "intermediate_size"),
        (large | {"hidden_size": 2048, "intermediate_size": 1024}, "num_experts"),
        ({"num_experts": 64}, "num_experts"),
        ({"weight_format": "fp8_channel"}, "weight_format"),
    ):
        assert reasons(spec, MoEQuery(**able | changes)) == [code]


def test_moe_says_what_it_can_do() -> None:
    spec, *_ = llmk_moe_kernels()
    able = {"site": "experts", "num_experts": 8, "top_k": 2, "hidden_size": 64, "intermediate_size": 32}
    for changes in (
        {},
        {"activation": "gelu", "scoring": "sigmoid", "scaling": 2.5},
        {"num_groups": 2, "top_groups": 2},
        {"num_groups": 4, "top_groups": 2, "group_scoring": "top2_sum"},
        {"bias": True, "activation_alpha": 1.702, "activation_limit": 7.0, "up_offset": 1.0},
    ):
        assert match(spec, MoEQuery(platform=GPU, dtype="bfloat16", **able | changes))
    for changes, code in (
        ({"weight_format": "fp8_block"}, "weight_format"),
        ({"activation": "relu"}, "activation"),
        ({"scoring": "linear"}, "scoring"),
        ({"num_groups": 64, "num_experts": 128}, "num_groups"),
        ({"num_groups": 3}, "num_groups"),
        ({"top_k": 9}, "num_groups"),
        ({"num_groups": 4, "top_groups": 2, "top_k": 5}, "num_groups"),
        ({"num_groups": 2, "group_scoring": "mean"}, "group_scoring"),
        ({"num_experts": 2048}, "num_experts"),
        ({"deterministic": True}, "not_deterministic"),
    ):
        assert reasons(spec, MoEQuery(platform=GPU, dtype="bfloat16", **able | changes)) == [code]


def test_so_many_experts_of_a_token_take_minutes_to_compile() -> None:
    """By the kernels that hold their outputs at a time: few tokens go to the grouped ones then."""
    sizes: dict[str, Any] = {"num_experts": 64, "hidden_size": 64, "intermediate_size": 32}
    target = GPUTarget("cuda", 90, 32)
    for top_k, at_once in ((32, True), (33, False)):
        query = MoEQuery(site="moe", platform=GPU, dtype="bfloat16", top_k=top_k, **sizes)
        assert ("top_k" not in {reason.code for reason in supports_library(query).reasons}) is at_once
        assert (choose_tiles(target, "bfloat16", 1, 64, top_k, 64, 32).rows == 0) is at_once


@pytest.mark.parametrize("weight_format", ["fp8_channel", "fp8_block"])
def test_experts_in_fp8_need_devices_that_have_it_or_convert_it(weight_format: str) -> None:
    (spec,) = (spec for spec in llmk_moe_kernels() if spec.id == f"triton.fused_moe_{weight_format}")
    sizes: dict[str, Any] = {"num_experts": 8, "top_k": 2, "hidden_size": 64, "intermediate_size": 32}
    query = MoEQuery(site="moe", platform=GPU, dtype="bfloat16", weight_format=weight_format, **sizes)
    assert reasons(spec, query) == ["missing_feature"]
    assert match(spec, replace(query, platform=WITH_FP8))
    assert match(spec, replace(query, platform=WIDENING))
    assert reasons(spec, replace(query, platform=WITH_FP8, weight_format="plain")) == ["weight_format"]


def test_ops_say_what_they_can_do() -> None:
    by_op = {spec.op: spec for spec in llmk_ops() if not spec.id.endswith("_tma")}

    def query(op: str, **changes: Any) -> OpQuery:
        return OpQuery(platform=GPU, site=op, dtype="bfloat16", op=op, **changes)

    assert match(by_op["rms_norm"], query("rms_norm", facts={"size": 8192}))
    assert match(by_op["rms_norm"], query("rms_norm", facts={"head_dim": 128}))
    scan = {"num_heads": 80, "head_dim": 64, "num_groups": 1, "state_size": 128, "conv_kernel": 4}
    for facts, code in (({}, ""), ({"state_size": 1024}, "state_size"), ({"head_dim": 1024}, "num_groups")):
        found = reasons(by_op["state_space_mixer"], query("state_space_mixer", facts=scan | facts))
        assert found == [code] * bool(code)
    assert reasons(by_op["gated_delta_net"], query("gated_delta_net", facts={"key_dim": 1024})) == ["key_dim"]
    assert reasons(by_op["add_rms_norm"], query("add_rms_norm", facts={"size": 1 << 16})) == ["size"]
    write = by_op["qk_norm_rope_write_kv"]
    assert match(write, query(write.op, attention="triton.attention", cache_layout=LAYOUT))
    assert reasons(write, query(write.op, attention="reference.attention")) == ["attention"]


@pytest.mark.parametrize("op", ["rms_norm", "add_rms_norm", "sandwich_norm"])
def test_norms_take_weights_with_an_offset(op: str) -> None:
    (spec,) = (spec for spec in llmk_ops() if spec.op == op)
    offset = OpQuery(platform=GPU, site=op, dtype="bfloat16", op=op, facts={"size": 64, "norm_offset": 1.0})
    assert match(spec, offset, facts_to_know(op, REFERENCES))


@pytest.mark.parametrize("op", ["qk_norm_rope_write_kv", "qk_norm_rope_attention"])
def test_fused_norms_of_queries_and_keys_do_too(op: str) -> None:
    (spec,) = (spec for spec in llmk_ops() if spec.op == op)
    given: dict[str, Any] = {"attention": "triton.attention", "cache_layout": LAYOUT}
    offset = OpQuery(platform=GPU, site=op, dtype="bfloat16", op=op, **given, facts={"norm_offset": 1.0})
    assert match(spec, offset, facts_to_know(op, REFERENCES))
    assert match(spec, replace(offset, facts={"no_rope": True}), facts_to_know(op, REFERENCES))
    assert match(spec, replace(offset, facts={"value_dim": 32}), facts_to_know(op, REFERENCES))
    turned = replace(offset, facts={"rotary_sections": (4, 4)})
    (reason,) = match(spec, turned, facts_to_know(op, REFERENCES)).reasons
    assert (reason.code, reason.wanted) == ("not_understood", "rotary_sections = (4, 4)")


def test_gemms_take_plain_and_quantized_weights() -> None:
    kernels = {spec.id: spec for spec in llmk_linear_kernels() if not spec.id.endswith("_tma")}
    sizes: dict[str, Any] = {"site": "o", "dtype": "bfloat16"}
    for weight_format, platform, able in (
        ("plain", GPU, ["triton.linear_small_m"]),
        ("fp8_channel", WITH_FP8, ["triton.linear_small_m_fp8_channel"]),
        ("fp8_block", WITH_FP8, ["triton.linear_small_m_fp8_block"]),
        ("fp8_block", WIDENING, ["triton.linear_small_m_fp8_block"]),
        ("fp8_channel", WIDENING, []),
        ("fp8_block", GPU, []),
        ("int4_group", GPU, ["triton.linear_int4", "triton.linear_int4_many"]),
        ("int8_channel", WITH_FP8, []),
    ):
        query = LinearQuery(in_features=8, out_features=8, weight_format=weight_format, platform=platform, **sizes)
        assert [id for id, spec in kernels.items() if match(spec, query)] == able
    for spec in (spec for spec in specs() if spec.op and "small_m" in spec.implementation and "_tma" not in spec.id):
        layouts = {kernel.layout for kernel in kernels.values() if "int4" not in kernel.id}
        assert all(match(spec, OpQuery(op=spec.op, weight_layout=kept, platform=WITH_FP8, **sizes)) for kept in layouts)
        query = OpQuery(op=spec.op, weight_layout="reference_fp8_block", platform=GPU, **sizes)
        assert reasons(spec, query) == ["missing_feature"]
        assert reasons(spec, replace(query, weight_layout="reference_tiled")) == ["weight"]


@pytest.mark.parametrize("kind", ["linear", "op"])
def test_tma_kernels_need_hopper(kind: str) -> None:
    (spec,) = (spec for spec in (*llmk_linear_kernels(), *llmk_ops()) if spec.id.endswith("_tma") and spec.kind == kind)
    hopper = replace(GPU, arch="sm_90", arch_family="cuda", arch_version=(9, 0))

    def query(size: int = 4096, dtype: str = "bfloat16", platform: PlatformFacts = hopper) -> LinearQuery | OpQuery:
        asked: dict[str, Any] = {"site": "s", "dtype": dtype, "platform": platform}
        if kind == "linear":
            return LinearQuery(in_features=size, out_features=8, **asked)
        return OpQuery(op=spec.op, facts={"size": size}, weight_layout="plain", **asked)

    assert match(spec, query())
    assert reasons(spec, query(size=4100)) == ["size"]
    assert reasons(spec, query(platform=replace(hopper, arch="sm_100", arch_version=(10, 0)))) == ["arch"]
    assert reasons(spec, query(dtype="float32")) == ["dtype"]
    assert [(band.start, band.stop) for band in spec.bands] == [(17, 129)]

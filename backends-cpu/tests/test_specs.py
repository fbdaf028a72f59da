"""What is offered where, advised defaults, and refused settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from llmk.api import AttentionFacts, Default, Host, LinearFacts, LinearQuery, ModelFacts, PlatformFacts, Verdict
from llmk.config import load
from llmk_cpu.machine import cores
from llmk_cpu.probe import KNOWN, probe
from llmk_cpu.specs import (
    llmk_check_config,
    llmk_config_defaults,
    llmk_linear_kernels,
    llmk_moe_kernels,
    supports_prepacked,
)

BY_ARCH = {facts.arch: facts for facts in KNOWN}
MODEL = ModelFacts(
    architecture="A", model="m.a", num_layers=1, hidden_size=8, vocab_size=8, max_model_len=8, dtype="bfloat16",
    num_parameters=5_000_000,
)  # fmt: skip
HERE = probe(Host()).facts
assert HERE is not None


def ask(arch: str, dtype: str, size: int = 1024, **query: Any) -> Verdict:
    return supports_prepacked(
        LinearQuery(platform=BY_ARCH[arch], site="out", dtype=dtype, in_features=size, out_features=size, **query)
    )


@pytest.mark.hook("llmk_linear_kernels")
def test_prepacked_kernels_rank_higher_and_the_deterministic_one_declares_it() -> None:
    prepacked, invariant, plain, *native = llmk_linear_kernels()
    names = ("cpu.linear_prepacked", "cpu.linear_prepacked_invariant", "cpu.linear_torch")
    assert (prepacked.id, invariant.id, plain.id) == names
    assert (prepacked.tier, prepacked.score) > (invariant.tier, invariant.score) > (plain.tier, plain.score)
    assert len({kernel.layout for kernel in (prepacked, invariant, plain)}) == 3
    assert [kernel.deterministic for kernel in (prepacked, invariant, plain)] == [False, True, False]
    assert all(plain.tier < kernel.tier < prepacked.tier and not kernel.opt_in for kernel in native)
    by_id = {kernel.id: kernel for kernel in native}
    assert [id for id, kernel in by_id.items() if not kernel.deterministic] == [
        "cpu.linear_many",
        "cpu.linear_int4_group_many",
        "cpu.linear_int8_group_many",
    ]
    assert by_id["cpu.linear_many"].layout == by_id["cpu.linear"].layout == plain.layout


@pytest.mark.hook("llmk_moe_kernels")
@pytest.mark.parametrize("arch", ["x86_64-avx2", "aarch64", "power9"])
def test_native_gemms_say_what_they_lack(arch: str) -> None:
    query = LinearQuery(
        platform=BY_ARCH[arch], site="out", dtype="bfloat16", in_features=48, out_features=8, weight_format="int4_group"
    )
    by_id = {kernel.id: kernel for kernel in (*llmk_linear_kernels(), *llmk_moe_kernels())}
    assert [reason.code for reason in by_id["cpu.linear_int4_group"].supports(query).reasons] == ["in_features"]
    assert [reason.code for reason in by_id["cpu.linear_int8"].supports(query).reasons] == ["weight_format"]
    assert by_id["cpu.linear"].supports(replace(query, weight_format="plain"))
    without = replace(BY_ARCH[arch], features=frozenset())
    verdict = by_id["cpu.linear"].supports(replace(query, platform=without, weight_format="plain"))
    assert [reason.code for reason in verdict.reasons] == ["library"]


@pytest.mark.parametrize("arch", ["x86_64", "ppc64le", "s390x", "riscv64"])
def test_no_native_kernel_serves_in_plain_cpp(arch: str) -> None:
    query = LinearQuery(platform=BY_ARCH[arch], site="out", dtype="float32", in_features=48, out_features=8)
    by_id = {kernel.id: kernel for kernel in llmk_linear_kernels()}
    (reason,) = by_id["cpu.linear"].supports(query).reasons
    assert reason.code == "missing_feature"
    assert "torch is faster" in str(reason)


@pytest.mark.parametrize(
    ("arch", "dtype", "size", "ok"),
    [
        ("x86_64-amx", "bfloat16", 1024, False),
        ("x86_64-avx512", "bfloat16", 1024, False),
        ("x86_64-avx512", "float32", 1024, True),
        ("x86_64-avx2", "bfloat16", 1024, False),
        ("x86_64-avx2", "float32", 1024, True),
        ("x86_64-avx512", "float32", 64, False),
    ],
)
def test_prepacking_is_offered_where_it_is_faster(arch: str, dtype: str, size: int, ok: bool) -> None:
    assert ask(arch, dtype, size).ok is ok


def test_prepacking_is_offered_for_bfloat16_where_the_wheel_has_no_library() -> None:
    facts = BY_ARCH["x86_64-avx512"]
    without = replace(facts, features=facts.features - {"native_kernels"})
    query = LinearQuery(platform=without, site="out", dtype="bfloat16", in_features=64, out_features=64)
    assert supports_prepacked(query).ok
    assert not supports_prepacked(replace(query, platform=replace(without, features=frozenset({"avx2"})))).ok


def test_a_refusal_gives_every_reason() -> None:
    verdict = ask("x86_64-avx2", "bfloat16", weight_format="int8_channel")
    assert [reason.code for reason in verdict.reasons] == ["weight_format", "missing_feature"]


def test_no_process_stands_by_where_memory_is_the_models() -> None:
    assert advised(HERE)["engine.standby"].value is False
    assert "180 MB" in advised(HERE)["engine.standby"].why


def advised(platform: PlatformFacts, model: ModelFacts | None = None) -> dict[str, Default]:
    return {default.path: default for default in llmk_config_defaults(platform, model)}


@pytest.mark.hook("llmk_config_defaults")
def test_advises_threads_for_this_machine_only() -> None:
    default = advised(HERE)["platform.threads"]
    assert default.value == cores(Host()).advised_threads
    assert "physical of" in default.why
    assert "platform.threads" not in advised(replace(HERE, arch="elsewhere"))


def test_a_small_model_gets_one_thread() -> None:
    assert advised(HERE, MODEL)["platform.threads"].value == 1
    assert "5,000,000" in advised(HERE, MODEL)["platform.threads"].why
    large = replace(MODEL, num_parameters=600_000_000)
    assert advised(HERE, large)["platform.threads"].value == cores(Host()).advised_threads


def test_leaves_memory_to_others_wherever_it_runs() -> None:
    assert advised(replace(HERE, arch="elsewhere"))["cache.memory_share"].value == 0.5
    assert advised(replace(HERE, name="other")) == {}, "what an accelerator's memory is used for is not its business"


@pytest.mark.parametrize(
    ("arch", "latent", "dtype", "advises"),
    [
        ("x86_64-avx2", 32, "bfloat16", True),
        ("x86_64-avx2", None, "bfloat16", False),
        ("x86_64-avx2", 32, "float32", False),
        ("x86_64-amx", 32, "bfloat16", False),
        ("x86_64", 32, "bfloat16", False),
    ],
)
def test_float32_where_torch_would_compute_in_bf16(arch: str, latent: int | None, dtype: str, advises: bool) -> None:
    attention = AttentionFacts(num_layers=1, num_heads=4, num_kv_heads=1, head_dim=40, latent_dim=latent)
    linear = LinearFacts(site="out", in_features=64, out_features=64)
    model = replace(MODEL, dtype=dtype, attention=(attention,), linear=(linear,))
    assert ("model.dtype" in advised(BY_ARCH[arch], model)) is advises


@pytest.mark.hook("llmk_check_config")
def test_refuses_more_threads_than_cores() -> None:
    usable = cores(Host()).logical

    def problems(threads: int, facts: PlatformFacts = HERE) -> list[str]:
        config = load({"platform.threads": threads}, environ={}).config
        return [problem.path for problem in llmk_check_config(config, facts)]

    assert problems(usable) == []
    assert problems(usable + 1) == ["platform.threads"]
    assert problems(usable + 1, BY_ARCH["aarch64"]) == []

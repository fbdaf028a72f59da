"""What is offered on which GPU, advised sizes, and refused settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from llmk.api import Default, LinearFacts, LinearQuery, ModelFacts, PlatformFacts
from llmk.api.matching import match
from llmk_cuda.probe import KNOWN
from llmk_cuda.specs import llmk_config_defaults, llmk_linear_kernels

GIB = 1 << 30
BY_ARCH = {facts.arch: facts for facts in reversed(KNOWN)}
KERNELS = {spec.id: spec for spec in llmk_linear_kernels()}
CPU = PlatformFacts(name="cpu", arch="x86_64", device_type="cpu", memory_bytes=16 * GIB)


def refused(id: str, arch: str, **query: Any) -> list[str]:
    """Codes of the reasons against a kernel."""
    asked = {"in_features": 4096, "out_features": 4096, "dtype": "bfloat16", **query}
    return [
        reason.code for reason in match(KERNELS[id], LinearQuery(platform=BY_ARCH[arch], site="o", **asked)).reasons
    ]


@pytest.mark.hook("llmk_linear_kernels")
def test_plain_weights_go_everywhere() -> None:
    assert refused("cuda.linear", "sm_75", dtype="float16") == []
    assert refused("cuda.linear", "sm_90", dtype="float32", in_features=7) == []
    assert refused("cuda.linear", "sm_90", weight_format="fp8_block") == ["weight_format"]


def test_small_m_is_left_to_small_m_kernels() -> None:
    few, many = KERNELS["cuda.linear"].bands
    assert few.stop == many.start
    assert few.score < many.score


@pytest.mark.parametrize(
    ("arch", "weight_format", "query", "codes"),
    [
        ("sm_89", "tensor", {}, []),
        ("sm_90", "channel", {}, []),
        ("sm_90", "channel", {"out_features": 24, "in_features": 100}, ["in_features", "out_features"]),
        ("sm_90", "channel", {"dtype": "float16"}, ["dtype"]),
        ("sm_86", "tensor", {}, ["arch"]),
        ("sm_90", "block", {}, []),
        ("sm_90", "block", {"in_features": 640}, ["in_features"]),
        ("sm_89", "block", {}, ["arch"]),
        ("sm_100", "block", {}, ["arch"]),
        ("sm_80", "block", {}, ["arch"]),
    ],
)
def test_fp8_needs_native_support(arch: str, weight_format: str, query: dict[str, Any], codes: list[str]) -> None:
    id = f"cuda.linear_fp8_{weight_format}"
    assert refused(id, arch, weight_format=f"fp8_{weight_format}", **query) == codes
    assert "weight_format" in refused(id, arch, weight_format="int8_channel")


MODEL = ModelFacts(
    architecture="A", model="m.a", num_layers=36, hidden_size=4096, vocab_size=151936, max_model_len=40960,
    dtype="bfloat16", num_parameters=8_200_000_000,
    linear=(
        LinearFacts(site="gate_up", in_features=4096, out_features=24576),
        LinearFacts(site="lm_head", in_features=4096, out_features=151936),
    ),
)  # fmt: skip


def advised(arch: str, model: ModelFacts | None = None, **changes: Any) -> dict[str, Default]:
    defaults = llmk_config_defaults(replace(BY_ARCH[arch], **changes), model)
    return {default.path: default for default in defaults}


@pytest.mark.hook("llmk_config_defaults")
def test_a_larger_gpu_runs_larger_steps() -> None:
    paths = ("scheduler.max_num_seqs", "scheduler.max_num_batched_tokens")
    sizes = {arch: tuple(advised(arch)[path].value for path in paths) for arch in ("sm_75", "sm_89", "sm_90")}
    assert sizes == {"sm_75": (128, 2048), "sm_89": (256, 4096), "sm_90": (1024, 8192)}
    assert "80 GiB of NVIDIA H100" in advised("sm_90")[paths[0]].why


def test_the_cache_leaves_room_for_graphs_and_libraries() -> None:
    shares = [advised("sm_90", MODEL, memory_bytes=gib * GIB)["cache.memory_share"].value for gib in (8, 40, 141)]
    assert shares == [0.9, 0.92, 0.95]
    assert all((1 - share) * gib > 0.75 for share, gib in zip(shares, (8, 40, 141), strict=True))


def test_advises_nothing_where_nothing_is_known() -> None:
    assert llmk_config_defaults(CPU, MODEL) == []
    assert advised("sm_90", MODEL, memory_bytes=0) == {}

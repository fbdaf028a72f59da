"""Whole plans for machines that are not here, for four kinds of models, with Triton and without: every kernel has a
reason, and each reference that is left is accounted for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from four_models import MODELS

import llmk_xpu.specs
from llmk.api import Choice, Plan
from llmk.config import load
from llmk.planning.boot import boot
from llmk_xpu.architectures import KNOWN

COMPOSED = "its parts are served, each by a kernel"
NO_KERNEL = "no wheel has a kernel for it"
LEFT: dict[str, str] = {
    # Where no fused kernel is faster: for more tokens than one, or sixteen.
    "reference.add_rms_norm_linear": COMPOSED,
    "reference.add_rms_norm_gate_up_silu": COMPOSED,
    "reference.add_rms_norm_router": COMPOSED,
    "reference.gate_up_silu": COMPOSED,
    "reference.latent_attention": COMPOSED,
    "reference.norm_rope_write_latent": COMPOSED,
    # Of features of requests that few use.
    "reference.apply_bias": NO_KERNEL,
    "reference.match_suffixes": NO_KERNEL,
    "reference.allow_tokens": NO_KERNEL,
    # Of latent attention, whose portable kernel was not tried on these GPUs.
    "reference.rope_interleaved": NO_KERNEL,
    "reference.per_head_matmul": NO_KERNEL,
}
"""What is left to the references on a machine with Triton, and why. The page on Intel GPUs says the same."""


@pytest.fixture(params=MODELS)
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(MODELS[request.param]))
    return tmp_path


def planned(checkpoint: Path, on: str, **settings: Any) -> Plan:
    named = {name.replace("__", "."): value for name, value in settings.items()}
    return boot(load({"model.path": str(checkpoint), **named}, environ={}), on=on, verify=False).plan


def everything(plan: Plan) -> Iterator[Choice]:
    for choice in plan.choices:
        yield from choice.with_parts()


@pytest.mark.parametrize("arch", ["pvc", "bmg", "dg2", "lnl"])
def test_every_reference_that_is_left_is_accounted_for(checkpoint: Path, arch: str) -> None:
    plan = planned(checkpoint, f"xpu/{arch}")
    assert (plan.platform.arch, plan.dtype) == (arch, "bfloat16")
    pieces = [piece for choice in everything(plan) for piece in choice.pieces]
    assert all(piece.why for piece in pieces)
    assert {piece.id for piece in pieces if piece.id.startswith("reference.")} <= LEFT.keys()
    assert {"triton.sample", "xpu.linear", "triton.linear_small_m"} <= {piece.id for piece in pieces}
    assert not any(piece.id.endswith(("_tma", "small_n")) for piece in pieces)
    latent = plan.architecture.startswith("Deepseek")
    site = "latent_attention" if latent else "attention"
    assert [piece.id for piece in plan.choice("attention", site).pieces] == [
        "xpu.attention" if latent else "triton.attention"
    ]


def test_without_triton_torch_serves(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine whose Triton is another's: attention and GEMMs are the library's, the rest the references'."""
    bare = tuple(replace(facts, features=facts.features - {"triton"}) for facts in KNOWN)
    monkeypatch.setattr(llmk_xpu.specs, "KNOWN", bare)
    plan = planned(checkpoint, "xpu/bmg")
    ids = {piece.id for choice in everything(plan) for piece in choice.pieces}
    assert not any(id.startswith("triton.") for id in ids)
    assert {"xpu.linear", "xpu.attention"} <= ids
    refused = {rejection.id: {reason.code for reason in rejection.reasons} for rejection in plan.choices[0].rejected}
    assert "missing_feature" in refused["triton.attention"]


def test_matrix_units_decide_who_multiplies_fp8(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MODELS["dense"]))
    kernels = {
        arch: planned(tmp_path, f"xpu/{arch}", model__quantization="fp8").choice("linear", "qkv").pieces[-1].id
        for arch in ("pvc", "bmg", "dg2", "mtl")
    }
    assert kernels.pop("mtl") == "reference.linear_fp8_channel"
    assert set(kernels.values()) == {"xpu.linear_fp8_channel"}


def test_without_matrix_units_the_dtype_is_float16(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MODELS["dense"]))
    assert planned(tmp_path, "xpu/mtl").dtype == "float16"


@pytest.mark.parametrize("on", ["xpu/1100", "xpu/b580", "xpu/b60", "xpu/a770", "xpu"])
def test_machines_go_by_name_too(tmp_path: Path, on: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MODELS["dense"]))
    facts = planned(tmp_path, on).platform
    assert on.removeprefix("xpu/").removeprefix("xpu") in facts.device_name.lower()

"""Whole plans for machines that are not here, for four kinds of models: every kernel has a reason, and each reference
that is left is accounted for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from four_models import MODELS

from llmk.api import Choice, Plan
from llmk.config import load
from llmk.planning.boot import boot

COMPOSED = "its parts are served, each by a kernel"
NO_KERNEL = "no wheel has a kernel for it"
LEFT: dict[str, str] = {
    # Where no fused kernel is faster: for more tokens than one, or sixteen.
    "reference.add_rms_norm_linear": COMPOSED,
    "reference.add_rms_norm_gate_up_silu": COMPOSED,
    "reference.add_rms_norm_router": COMPOSED,
    "reference.gate_up_silu": COMPOSED,
    # Of features of requests that few use.
    "reference.apply_bias": NO_KERNEL,
    "reference.match_suffixes": NO_KERNEL,
    "reference.allow_tokens": NO_KERNEL,
}
"""What is left to the references on a machine with Triton, and why. The page on AMD GPUs says the same."""
LATENT = dict.fromkeys(
    (
        f"reference.{op}"
        for op in ("attention", "latent_attention", "norm_rope_write_latent", "per_head_matmul", "rope_interleaved")
    ),
    "a tile needs more registers than a thread has",
)
"""Of latent attention alone, on RDNA."""

_TWO_STEPS = ("qk_norm_rope_attention", "qk_norm_rope_write_kv", "rope")
_MLA = ("attention", "latent_attention", "norm_rope_write_latent", "per_head_matmul", "rope_interleaved")
FORMATS: dict[str, tuple[dict[str, str], set[str]]] = {
    "fp8": ({"model__quantization": "fp8"}, set()),
    "fp8_block": ({"model__quantization": "fp8_block"}, {"linear_fp8_block"}),
    "int8": ({"model__quantization": "int8"}, {"linear_int8_channel", "fused_moe_int8_channel"}),
    "int8 cache": ({"cache__dtype": "int8"}, {*_TWO_STEPS, *_MLA}),
    "fp8 cache": ({"cache__dtype": "float8_e4m3fn"}, {*_TWO_STEPS, *_MLA}),
}
"""By how weights or the cache are stored: options, and what is left besides on gfx942 in some of the models. The page
on AMD GPUs says why."""


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


@pytest.mark.parametrize("arch", ["gfx942", "gfx950", "gfx1100", "gfx1201"])
def test_every_reference_that_is_left_is_accounted_for(checkpoint: Path, arch: str) -> None:
    plan = planned(checkpoint, f"rocm/{arch}")
    assert (plan.platform.arch, plan.dtype) == (arch, "bfloat16")
    pieces = [piece for choice in everything(plan) for piece in choice.pieces]
    assert all(piece.why for piece in pieces)
    left = {piece.id for piece in pieces if piece.id.startswith("reference.")}
    latent = plan.architecture.startswith("Deepseek")
    assert left <= LEFT.keys() | (LATENT.keys() if latent and arch.startswith("gfx1") else set())
    assert not latent or bool(left & LATENT.keys()) == arch.startswith("gfx1")
    assert {"triton.sample", "rocm.linear", "triton.linear_small_m"} <= {piece.id for piece in pieces}
    assert not any(piece.id.endswith(("_tma", "small_n")) for piece in pieces)


def test_each_reference_that_is_accounted_for_is_left_somewhere(tmp_path: Path) -> None:
    left: set[str] = set()
    for config in MODELS.values():
        (tmp_path / "config.json").write_text(json.dumps(config))
        plan = planned(tmp_path, "rocm/gfx1100")
        left |= {piece.id for choice in everything(plan) for piece in choice.pieces}
    assert LEFT.keys() | LATENT.keys() <= left


@pytest.mark.slow
@pytest.mark.parametrize("stored", FORMATS)
def test_every_reference_that_a_format_leaves_is_accounted_for(stored: str, tmp_path: Path) -> None:
    options, expected = FORMATS[stored]
    left: set[str] = set()
    for config in MODELS.values():
        (tmp_path / "config.json").write_text(json.dumps(config))
        plan = planned(tmp_path, "rocm/gfx942", **options)
        left |= {piece.id for choice in everything(plan) for piece in choice.pieces}
    found = {id.removeprefix("reference.") for id in left - LEFT.keys() if id.startswith("reference.")}
    assert found == expected


@pytest.mark.parametrize(
    ("arch", "stored", "kernel"),
    [
        ("gfx942", "fp8", "triton.fused_moe_fp8_channel"),
        ("gfx942", "fp8_block", "triton.fused_moe_fp8_block"),
        ("gfx90a", "fp8", "reference.fused_moe_fp8_channel"),
        ("gfx1100", "fp8_block", "reference.fused_moe_fp8_block"),
        ("gfx1201", "fp8_block", "triton.fused_moe_fp8_block"),
    ],
)
def test_experts_in_fp8(tmp_path: Path, arch: str, stored: str, kernel: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MODELS["moe"]))
    plan = planned(tmp_path, f"rocm/{arch}", model__quantization=stored)
    assert [piece.id for piece in plan.choice("moe", "moe").pieces] == [kernel]


@pytest.mark.parametrize(
    ("arch", "kernel"),
    [
        ("gfx942", "rocm.linear_fp8_channel_fnuz"),
        ("gfx950", "rocm.linear_fp8_channel"),
        ("gfx1201", "rocm.linear_fp8_channel"),
        ("gfx1100", "reference.linear_fp8_channel"),
        ("gfx90a", "reference.linear_fp8_channel"),
    ],
)
def test_fp8_weights(tmp_path: Path, arch: str, kernel: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MODELS["dense"]))
    plan = planned(tmp_path, f"rocm/{arch}", model__quantization="fp8")
    found = plan.choice("linear", "qkv")
    assert found.pieces[-1].id == kernel
    refused = {rejection.id: {reason.code for reason in rejection.reasons} for rejection in found.rejected}
    tma = refused["triton.linear_tma"]
    assert "arch" in tma, "kernels for NVIDIA's copy engine are refused by their architecture"


@pytest.mark.parametrize("on", ["rocm/mi325x", "rocm/mi355x", "rocm/9070", "rocm"])
def test_machines_go_by_name_too(tmp_path: Path, on: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MODELS["dense"]))
    facts = planned(tmp_path, on).platform
    assert on.removeprefix("rocm/").removeprefix("rocm") in facts.device_name.lower()

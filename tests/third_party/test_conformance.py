"""The conformance kit on an accelerator that llmk knows nothing of: its wheel's whole card, and part of what others
bring, by the reference kernels, on it. docs/plugins/conformance.md says how to run all of that."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from installed import install
from scratch import LLMK, run

LACKING = {f"the platform has no {facet} facet" for facet in ("graphs", "compiling", "collectives")}
KERNELS = (
    r"^reference\.(attention|latent_attention|linear|linear_invariant|linear_fp8_block|fused_moe|add_rms_norm|rope"
    r"|qk_norm_rope_write_kv|gated_delta_rule|sample)::"
)
MODELS = r"::(qwen3|deepseek-v2-lite): "
EAGER = """
import torch
from llmk_nova.platform import NovaPlatform

class Eager(NovaPlatform):
    def __init__(self, facts):
        super().__init__(facts)
        self.scratch = torch.empty(1, device="nova")
"""
EAGER_SPECS = """
from llmk.api import PlatformSpec, hookimpl
from llmk_nova.probe import probe

@hookimpl
def llmk_platforms():
    return [PlatformSpec(id="eager.nova", name="nova", implementation="eager_platform:Eager", probe=probe, rank=60)]
"""


@pytest.fixture
def check(accelerator_site: Path, tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """``llmk plugins check`` where two novas are visible; returns the results on its card."""

    def run_check(*arguments: str, installed: Path | None = None) -> list[dict[str, Any]]:
        card = tmp_path / "card.json"
        path = [str(installed or ""), str(accelerator_site), os.environ.get("PYTHONPATH", "")]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path)), "NOVA_VISIBLE_DEVICES": "0,1"}
        command = [sys.executable, "-c", LLMK, "plugins", "check", *arguments, "--json", str(card)]
        done = run(command, cwd=tmp_path, env=environ | {"OMP_NUM_THREADS": "1"})
        assert card.exists(), done.stdout + done.stderr
        found: list[dict[str, Any]] = json.loads(card.read_text())["results"]
        return found

    return run_check


def of(results: list[dict[str, Any]], outcome: str) -> list[tuple[str, str, str]]:
    """Spec, name and message of those that came out so."""
    return [(each["spec"], each["name"], each["message"]) for each in results if each["outcome"] == outcome]


@pytest.mark.slow
def test_its_wheel_is_green(check: Callable[..., list[dict[str, Any]]]) -> None:
    results = check("llmk-nova")
    assert of(results, "failed") == []
    assert {each["kind"] for each in results} == {"wheel", "platform", "op"}
    assert {message for _, _, message in of(results, "skipped")} == LACKING
    assert len(of(results, "passed")) >= 40


@pytest.mark.slow
def test_reference_kernels_keep_their_contracts_on_it(check: Callable[..., list[dict[str, Any]]]) -> None:
    results = check("llmk-core", "--platform", "nova", "--only", KERNELS)
    assert of(results, "failed") == []
    assert of(results, "skipped") == []
    kernels = [each for each in results if each["kind"] != "op_contract"]
    assert {each["kind"] for each in kernels} == {"attention", "linear", "moe", "op"}
    assert len({each["spec"] for each in kernels}) == 11


@pytest.mark.slow
def test_models_give_their_oracles_logits_on_it(check: Callable[..., list[dict[str, Any]]]) -> None:
    """A dense one and one with experts and latent attention, cut over two ranks, too."""
    results = check("llmk-models", "--platform", "nova", "--kind", "model", "--only", MODELS)
    assert of(results, "failed") == []
    assert of(results, "skipped") == []
    assert {each["spec"] for each in results} == {"models.dense", "models.deepseek_v2"}


@pytest.mark.slow
def test_a_platform_that_begins_its_device_too_early_fails(
    check: Callable[..., list[dict[str, Any]]], tmp_path: Path
) -> None:
    """Of a device that torch knows when the platform was imported."""
    site = install(tmp_path / "site", "eager", EAGER_SPECS, eager_platform=EAGER)
    results = check("eager", "--kind", "platform", "--only", "creating the platform", installed=site)
    ((_, _, message),) = of(results, "failed")
    assert "creating the platform initialized the device" in message

"""Estimated operations of tiny models, against those that torch counts while transformers runs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from llmk.config import load
from llmk.engine.wire.cost import CostModel
from llmk.engine.wire.step import StepPlan, Work
from llmk.planning.boot import boot
from llmk_testing.checkpoints import write_checkpoint

VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {"head_dim": 32},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 4},
}


@pytest.fixture(scope="module", params=VARIANTS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny"), request.param, **VARIANTS[request.param])


def counted(model: Any, tokens: int, **options: Any) -> tuple[int, Any]:
    """Operations of a forward pass whose last token's logits are wanted, but for those of rotary frequencies."""
    counter = FlopCounterMode(display=False)
    with torch.inference_mode(), counter:
        out = model(torch.ones(1, tokens, dtype=torch.int64), logits_to_keep=1, use_cache=True, **options)
    rotary = sum(sum(found.values()) for name, found in counter.get_flop_counts().items() if "rotary" in name)
    return counter.get_total_flops() - rotary, out.past_key_values


@pytest.mark.parametrize("prompt", [1, 7, 33])
def test_operations_equal_those_that_torch_counts(folder: Path, prompt: int) -> None:
    from transformers import AutoModelForCausalLM

    options: dict[str, Any] = {"attn_implementation": "eager", "experts_implementation": "eager"}
    oracle = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options).eval()
    booted = boot(load({"model.path": str(folder)}, environ={}), verify=False)
    model = CostModel(booted.facts, dtype="float32", cache_dtype="float32")

    def estimate(tokens: int, length: int) -> float:
        plan = StepPlan(step=0, work=[Work(slot=0, before=0, num_tokens=tokens, sample=True)])
        return model.step(plan, [length]).flops

    prefill, past = counted(oracle, prompt)
    decode, _ = counted(oracle, 1, past_key_values=past)
    assert estimate(1, prompt + 1) == decode
    (site,) = booted.facts.attention
    hidden_keys = prompt * (prompt - 1) // 2  # eager attention multiplies those too that causality hides
    assert estimate(prompt, prompt) == prefill - 4 * site.num_layers * site.num_heads * site.head_dim * hidden_keys

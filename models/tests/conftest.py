"""Checkpoints that the tests of this package share, and what transformers makes of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from llmk.testing.checkpoints import write_checkpoint

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def make_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Writes a tiny checkpoint, once for equal arguments."""
    made: dict[str, Path] = {}

    def make(model_type: str, **overrides: Any) -> Path:
        key = f"{model_type} {sorted(overrides.items())}"
        if key not in made:
            made[key] = write_checkpoint(tmp_path_factory.mktemp("checkpoint") / model_type, model_type, **overrides)
        return made[key]

    return make


def transformers_logits(checkpoint: Path, token_ids: list[int], dtype: torch.dtype) -> Tensor:
    """Float32 logits ``[tokens, vocab]`` of the library's own model, in one pass and without a cache."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=dtype, attn_implementation="eager").eval()
    with torch.inference_mode():
        return model(torch.tensor([token_ids])).logits[0].float()


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Root mean square of the difference over that of ``expected``."""
    return float((found - expected).norm() / expected.norm())

"""Compares a checkpoint's logits with those of transformers."""

from __future__ import annotations

import random
from pathlib import Path

import torch

from llmk_testing.comparing import relative_error
from llmk_testing.model import ModelHarness
from llmk_testing.model_example import transformers_logits

TOLERANCE = 2e-5
"""Relative, in float32: sums in another order."""
PROMPT = random.Random(3).choices(range(3, 380), k=61)


def check_equal(folder: Path) -> None:
    """In one step, and in steps of several sizes."""
    expected = transformers_logits(folder, PROMPT, torch.float32)
    harness = ModelHarness.of(folder)
    assert harness.boot.plan.model != "models.transformers"
    (whole,) = harness.step([("whole", PROMPT)])
    cut = [harness.step([("cut", part)])[0] for part in (PROMPT[:1], PROMPT[1:40], PROMPT[40:41], PROMPT[41:])]
    assert relative_error(whole, expected) < TOLERANCE
    assert relative_error(torch.cat(cut), expected) < TOLERANCE

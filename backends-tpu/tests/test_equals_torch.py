"""Families on JAX, in a process without torch, generate what they do on torch; those that can't be built say why."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from llmk.api import SelectionError
from llmk.kernel.loader import load_object
from llmk.planning.checkpoint.folder import read_checkpoint
from llmk.tree import CausalLM, Config
from llmk_models.specs import llmk_models
from llmk_testing.checkpoints import write_checkpoint
from llmk_testing.comparing import relative_error
from llmk_testing.model import ModelHarness
from llmk_tpu.support import check

Run = Callable[..., Any]
PROMPT = random.Random(5).choices(range(3, 380), k=90)
COUNT = 24
PAGE = Path(__file__).parents[2] / "docs/plugins/add-a-model.md"
BUILT = ("models.dense", "models.gemma2", "models.mixtral", "models.qwen3_moe")
"""Families of which every example must be built. Others may be, or are refused by the name of what they lack."""

HALF = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
OTHERS = {
    "half-of-each-head-rotates": {"model_type": "llama", "rope_parameters": HALF},
    "bfloat16-in-several-files": {"model_type": "qwen3", "head_dim": 32, "dtype": "bfloat16", "shard_bytes": 100_000},
}


def _examples() -> Iterator[Any]:
    for spec in llmk_models():
        for number, example in enumerate(load_object(spec.examples) if spec.tree else ()):
            marks = [pytest.mark.slow] if number or spec.id not in BUILT else []
            yield pytest.param(spec.id, spec.tree, example.write, id=example.name, marks=marks)
    for name, options in OTHERS.items():
        yield pytest.param(BUILT[0], "llmk_models.dense:tree", partial(write_checkpoint, **options), id=name)


@pytest.mark.parametrize(("family", "tree", "write"), [*_examples()])
def test_greedy_tokens(family: str, tree: str, write: Any, tmp_path: Path, jax_process: Run) -> None:
    write(tmp_path)
    if family not in BUILT and refusal(load_object(tree)(Config(read_checkpoint(tmp_path)))):
        return
    done = jax_process("tokens", folder=str(tmp_path), prompt=PROMPT, count=COUNT)
    assert done == {"tokens": tokens_of_torch(tmp_path), "torch": False}


def refusal(model: CausalLM) -> str:
    """Why a tree can't be built; empty if it can."""
    try:
        check(model)
    except SelectionError as error:
        assert "the JAX runtime can't build" in str(error)  # noqa: PT017 -- other trees are built
        return str(error)
    return ""


def tokens_of_torch(folder: Path) -> list[int]:
    model = ModelHarness.of(folder, {"model.dtype": "float32"})
    tokens: list[int] = []
    while len(tokens) < COUNT:
        (logits,) = model.step([("a", tokens[-1:] or PROMPT)])
        tokens.append(int(logits[-1].argmax()))
    return tokens


@pytest.mark.parametrize(
    ("model_type", "own"),
    [
        ("qwen3", {"head_dim": 32}),
        pytest.param(
            "gemma2",
            {"head_dim": 16, "sliding_window": 24, "attn_logit_softcapping": 2.0},
            marks=pytest.mark.slow,
        ),
        pytest.param("mixtral", {"num_local_experts": 4}, marks=pytest.mark.slow),
    ],
)
def test_logits(model_type: str, own: dict[str, Any], tmp_path: Path, jax_process: Run) -> None:
    """In float32 they differ by the order of summation; in bfloat16 they are about as exact as torch's."""
    write_checkpoint(tmp_path, model_type, **own)

    def both(dtype: str) -> tuple[Any, Any]:
        file = jax_process("logits", folder=str(tmp_path), prompt=PROMPT, dtype=dtype)
        on_torch = ModelHarness.of(tmp_path, {"model.dtype": dtype}).step([("a", PROMPT)])[0]
        return torch.from_numpy(np.load(file)), on_torch

    (found, exact), (rounded, torch_rounded) = both("float32"), both("bfloat16")
    assert relative_error(found, exact) < 2e-5
    assert relative_error(rounded, exact) < 1.25 * relative_error(torch_rounded, exact)


@pytest.mark.parametrize(("model_type", "loops"), [("llama", 1), ("gemma2", 3)])
def test_layers_that_are_alike_run_in_a_loop(model_type: str, loops: int, tmp_path: Path, jax_process: Run) -> None:
    write_checkpoint(tmp_path, model_type)
    assert jax_process("loops", folder=str(tmp_path)) == loops


def test_the_page_that_shows_it(tmp_path: Path, jax_process: Run) -> None:
    write_checkpoint(tmp_path, "qwen3", head_dim=32)
    text = PAGE.read_text().partition("## Another runtime\n")[2]
    code = text.partition("```python\n")[2].partition("```")[0]
    found = jax_process("page", code=code.replace("/models/Qwen3-0.6B", str(tmp_path)))
    (logits,) = ModelHarness.of(tmp_path).step([("a", [9, 11, 18])])
    assert found == int(logits[-1].argmax())

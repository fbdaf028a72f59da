"""The native families conform on all their examples; and what only some have: stacked experts, dummy weights."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from llmk.api import CheckpointError, ModelSpec
from llmk.kernel.loader import load_object
from llmk_models.specs import llmk_models
from llmk_testing.bench import Bench
from llmk_testing.case import Result
from llmk_testing.comparing import relative_error
from llmk_testing.model import ModelHarness
from llmk_testing.model_example import transformers_logits
from llmk_testing.suites import cases

EXAMPLES = [
    (spec, example.name, dict(example.write.keywords))
    for spec in llmk_models()
    if spec.id != "models.transformers"
    for example in load_object(spec.examples)
]
VARIANTS = {name: (config.pop("model_type"), config) for _, name, config in EXAMPLES}
"""Model types and configs of the families' examples, by name."""

FP32_TOLERANCE = 2e-5
"""Relative: sums in another order, over three layers."""

PROMPT = random.Random(5).choices(range(3, 380), k=90)


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench.open("cpu")


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "variant"), [(spec, name) for spec, name, _ in EXAMPLES], ids=[*VARIANTS])
def test_conforms(spec: ModelSpec, variant: str, bench: Bench) -> None:
    own = [case for case in cases("model", spec, bench) if case.name.startswith(f"{variant}: ")]
    results = [Result.of(case) for case in own]
    assert [result for result in results if result.outcome == "failed"] == []
    assert 20 <= len(results) <= 31, "some examples name values that are refused"


@pytest.mark.parametrize("variant", ["mixtral", "qwen3-moe-one-dense-layer", "qwen3-next"])
def test_experts_as_transformers_stacks_them(variant: str, make_checkpoint: Callable[..., Path]) -> None:
    """Version 5 keeps the experts of a layer in two tensors, and writes them so on request."""
    from transformers import AutoModelForCausalLM

    model_type, overrides = VARIANTS[variant]
    one_by_one = make_checkpoint(model_type, **overrides)
    stacked = one_by_one.with_name(model_type + "-stacked")
    AutoModelForCausalLM.from_pretrained(one_by_one).save_pretrained(stacked, save_original_format=False)
    with safe_open(stacked / "model.safetensors", "pt") as reader:
        assert "model.layers.0.mlp.experts.gate_up_proj" in reader.keys()  # noqa: SIM118 -- no mapping
    logits = [ModelHarness.of(folder).step([("a", PROMPT)])[0] for folder in (one_by_one, stacked)]
    assert torch.equal(logits[0], logits[1])


@pytest.mark.parametrize("variant", ["qwen3-moe-one-dense-layer", "gemma2", "mamba2", "qwen3-next"])
def test_dummy_weights_come_from_the_seed(variant: str, make_checkpoint: Callable[..., Path]) -> None:
    model_type, overrides = VARIANTS[variant]
    settings = {"model.load_format": "dummy", "engine.seed": 1}
    folder = make_checkpoint(model_type, **overrides)
    logits = [
        ModelHarness.of(folder, settings | {"engine.seed": seed}).step([("a", PROMPT[:4])])[0] for seed in (1, 1, 2)
    ]
    assert torch.equal(logits[0], logits[1])
    assert not torch.equal(logits[0], logits[2])


def test_a_missing_expert_is_named(make_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    model_type, overrides = VARIANTS["mixtral"]
    folder = shutil.copytree(make_checkpoint(model_type, **overrides), tmp_path / "copy")
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.block_sparse_moe.experts.2.w3.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        CheckpointError, match=r"lacks 1 of the tensors .*layers\.1\.block_sparse_moe\.experts\.2\.w3\.weight"
    ):
        ModelHarness.of(folder)


@pytest.mark.parametrize("variant", ["llama_tied_biases", "gemma2", "mamba2_tied_biases_one_group"])
def test_a_tied_head_stored_with_another_table_is_used(
    variant: str, make_checkpoint: Callable[..., Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As in transformers, which does not tie the two then; two equal ones are tied."""
    name = next(each for each in VARIANTS if each.replace("-", "_") == variant)
    model_type, overrides = VARIANTS[name]
    folder = shutil.copytree(make_checkpoint(model_type, **overrides), tmp_path / "copy")
    tensors = load_file(folder / "model.safetensors")
    table = next(tensor for name, tensor in tensors.items() if "embed" in name)

    def logits(head: torch.Tensor) -> torch.Tensor:
        save_file({**tensors, "lm_head.weight": head}, folder / "model.safetensors", metadata={"format": "pt"})
        expected = transformers_logits(folder, PROMPT, torch.float32)
        found = ModelHarness.of(folder).step([("a", PROMPT)])[0]
        assert relative_error(found, expected) < FP32_TOLERANCE
        return found

    tied = logits(table.clone())
    assert "not tied" not in caplog.text
    other = table.clone()
    other[-1] += 1
    assert not torch.equal(logits(other)[:, -1], tied[:, -1])
    assert "lm_head.weight differs from" in caplog.text

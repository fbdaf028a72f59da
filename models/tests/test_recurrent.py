"""Families with recurrent state against transformers, however a text is cut into steps and wherever snapshots lie."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from llmk.api import ConfigError, RecurrentCache
from llmk.config import load
from llmk.planning.boot import boot
from llmk.planning.report import render_table
from llmk_testing.comparing import relative_error
from llmk_testing.files import copied
from llmk_testing.model import ModelHarness
from llmk_testing.model_example import transformers_logits

from .test_native import FP32_TOLERANCE, VARIANTS

PROMPT = [random.Random(7).randrange(3, 380) for _ in range(150)]


@pytest.fixture(params=["mamba2", "qwen3-next"])
def checkpoint(request: pytest.FixtureRequest, make_checkpoint: Callable[..., Path]) -> Path:
    model_type, overrides = VARIANTS[request.param]
    return make_checkpoint(model_type, **overrides)


def harness_of(checkpoint: Path, state_block_size: int = 64, **settings: Any) -> ModelHarness:
    return ModelHarness.of(checkpoint, settings, state_block_size=state_block_size, num_blocks=1000)


def run(harness: ModelHarness, sizes: list[int], name: str = "it", mixed: bool = False) -> Tensor:
    """Logits of the prompt, ``sizes`` tokens at a time, ``mixed`` with other requests that start, decode and finish."""
    found = []
    for i, chunk in enumerate(torch.tensor(PROMPT[: sum(sizes)]).split(sizes)):
        others: list[tuple[Any, list[int]]] = [(f"{name} 1", [7 + i]), (f"{name} new {i}", [3, 4, 5])] if mixed else []
        found.append(harness.step([*others[:1], (name, chunk.tolist()), *others[1:]])[len(others[:1])])
    return torch.cat(found)


@pytest.mark.parametrize("block_size", [1, 5, 64, 1000])
def test_equals_transformers_for_any_chunking(checkpoint: Path, block_size: int) -> None:
    expected = transformers_logits(checkpoint, PROMPT, torch.float32)
    harness = harness_of(checkpoint, block_size)
    assert relative_error(run(harness, [150]), expected) < FP32_TOLERANCE
    assert relative_error(run(harness, [1, 63, 1, 1, 84], "cut", mixed=True), expected) < FP32_TOLERANCE
    assert relative_error(run(harness, [1] * 150, "decoded"), expected) < FP32_TOLERANCE


def test_states_are_kept_in_the_chosen_dtype(checkpoint: Path) -> None:
    """By default in the engine's: half of the memory, at the price of up to twice the error."""
    expected = transformers_logits(checkpoint, PROMPT, torch.float32)
    own: dict[str, Any] = {"model.dtype": "bfloat16"}
    wide, narrow = (harness_of(checkpoint, **own, **more) for more in ({"cache.state_dtype": "float32"}, {}))
    kept = [states_of(harness) for harness in (wide, narrow)]
    assert [{spec.tensors[1].dtype for spec in specs} for specs in kept] == [{"float32"}, {"bfloat16"}]
    assert kept[1][0].page_bytes < 0.6 * kept[0][0].page_bytes
    errors = [relative_error(run(harness, [60, *[1] * 90]), expected) for harness in (wide, narrow)]
    assert errors[1] < 2.5 * errors[0]


def states_of(harness: ModelHarness) -> list[RecurrentCache]:
    return [spec for _, _, spec in harness.model.cache_specs() if isinstance(spec, RecurrentCache)]


@pytest.mark.parametrize(
    ("stated", "options", "expected"),
    [
        ({"mamba_ssm_dtype": "float32"}, {}, "float32"),
        ({"mamba_ssm_cache_dtype": "float32"}, {}, "float32"),
        ({"mamba_ssm_dtype": "float32"}, {"cache.state_dtype": "bfloat16"}, "bfloat16"),
        ({"mamba_ssm_dtype": "float16"}, {}, "float32"),
        ({"mamba_ssm_dtype": "float64"}, {}, "bfloat16"),
        ({"mamba_ssm_dtype": "bfloat16"}, {"model.dtype": "float32"}, "float32"),
        ({}, {"engine.deterministic": True}, "float32"),
        ({}, {"model.dtype": "float16"}, "float32"),
    ],
)
def test_states_that_are_left_open_are_as_the_checkpoint_states(
    checkpoint: Path, tmp_path: Path, stated: dict[str, str], options: dict[str, Any], expected: str
) -> None:
    folder = copied(checkpoint, tmp_path / "stated", config=stated)
    found = boot(load({"model.path": str(folder), "model.dtype": "bfloat16", **options})).facts
    assert {each.dtype for site in found.recurrent for each in site.tensors if each.accumulates} == {expected}


def test_narrow_states_are_not_deterministic(checkpoint: Path) -> None:
    given = {"model.path": str(checkpoint), "cache.state_dtype": "bfloat16", "engine.deterministic": True}
    with pytest.raises(ConfigError, match=r"recurrent states in bfloat16 \(cache.state_dtype\)"):
        boot(load(given))


def test_concurrent_requests_do_not_affect_each_other(checkpoint: Path) -> None:
    harness = harness_of(checkpoint, 16)
    prompts = {name: [random.Random(name).randrange(3, 380) for _ in range(40)] for name in range(5)}
    first_logits = harness.step([(name, prompts[name][: 8 * name + 1]) for name in prompts])
    found = {name: [logits] for name, logits in zip(prompts, first_logits, strict=True)}
    for i in range(7):
        work = [(name, [prompts[name][8 * name + 1 + i]]) for name in prompts]
        for name, logits in zip(prompts, harness.step(work), strict=True):
            found[name].append(logits)
    for name, token_ids in prompts.items():
        expected = transformers_logits(checkpoint, token_ids[: 8 * name + 8], torch.float32)
        assert relative_error(torch.cat(found[name]), expected) < FP32_TOLERANCE


def test_determinism_takes_the_kernels_that_go_token_by_token(checkpoint: Path) -> None:
    harness = harness_of(checkpoint, **{"engine.deterministic": True})
    chosen = {choice.id for choice in harness.boot.plan.all_choices()}
    scan = {"mamba2": "state_space_scan", "qwen3_next": "gated_delta_rule"}[checkpoint.name]
    assert f"reference.{scan}" not in chosen
    assert {f"reference.{scan}_invariant", f"cpu.{scan}"} & chosen, "one of those that go token by token"
    expected = transformers_logits(checkpoint, PROMPT, torch.float32)
    assert relative_error(run(harness, [70, 1, 79], mixed=True), expected) < FP32_TOLERANCE


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_cache_specs_match_the_facts(checkpoint: Path, dtype: str) -> None:
    """Except the dtype of the convolution's states: facts are stated before the engine's is chosen."""
    harness = harness_of(checkpoint, **{"model.dtype": dtype})
    (facts,) = harness.boot.facts.recurrent
    specs = [spec for _, site, spec in harness.model.cache_specs() if site == facts.site]
    assert len(specs) == facts.num_layers
    spec = specs[0]
    assert isinstance(spec, RecurrentCache)
    assert [tensor.shape for tensor in spec.tensors] == [tensor.shape for tensor in facts.tensors]
    assert [tensor.dtype for tensor in spec.tensors] == [dtype, dtype]
    assert [tensor.dtype for tensor in facts.tensors] == ["float32", dtype]


def test_a_model_without_attention_can_be_explained(make_checkpoint: Callable[..., Path]) -> None:
    model_type, overrides = VARIANTS["mamba2"]
    path = str(make_checkpoint(model_type, **overrides))
    booted = boot(load({"model.path": path}, environ={}), verify=False)
    table = render_table(booted.plan)
    assert "Mamba2ForCausalLM by models.mamba2" in table
    assert "state_space_scan " in table
    assert not [choice for choice in booted.plan.choices if choice.kind == "attention"]


@pytest.mark.parametrize(
    ("variant", "old", "new"),
    [("mamba2", "backbone.embeddings.weight", "backbone.embedding.weight"), ("qwen3-next", "", "mtp.norm.weight")],
)
def test_names_that_checkpoints_may_have(
    variant: str, old: str, new: str, make_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    """An older name of the table, and heads that predict several tokens at once, which are left out."""
    model_type, overrides = VARIANTS[variant]
    source = make_checkpoint(model_type, **overrides)
    (tmp_path / "config.json").write_text((source / "config.json").read_text())
    tensors = load_file(source / "model.safetensors")
    tensors[new] = tensors.pop(old, torch.zeros(64))
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert torch.equal(*(run(harness_of(folder), [20]) for folder in (source, tmp_path)))

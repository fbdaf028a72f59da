"""Families whose heads have slopes (ALiBi) in place of rotation."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

from llmk import LLM, SamplingParams
from llmk.api import CheckpointError
from llmk.tree import alibi_slopes
from llmk_models import bloom, mpt
from llmk_testing.comparing import relative_error
from llmk_testing.model import ModelHarness

from .configs import config

PROMPT = random.Random(5).choices(range(3, 380), k=90)
BLOOM: dict[str, Any] = {"n_layer": 3, "n_head": 4, "num_key_value_heads": 4}


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 5, 7, 8, 12, 14, 16, 32, 40, 71, 112])
def test_slopes_are_those_of_the_families(heads: int) -> None:
    found = torch.tensor(alibi_slopes(heads))
    of_bloom = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]
    of_mpt = -build_mpt_alibi_tensor(heads, 2)[:, 0, 0]
    torch.testing.assert_close(found, of_bloom, rtol=1e-5, atol=0)
    torch.testing.assert_close(found, of_mpt.flatten(), rtol=1e-5, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"parallel_attn": False, "multi_query": False, "bias": True},
        {"hidden_size": 80, "num_attention_heads": 5},
        {"new_decoder_architecture": True, "num_kv_heads": 2},
    ],
    ids=str,
)
def test_falcon_with_slopes(changes: dict[str, Any], make_checkpoint: Callable[..., Path]) -> None:
    """With fused attention: by its eager one, transformers adds slopes twice."""
    folder = make_checkpoint("falcon", alibi=True, **changes)
    auto: Any = AutoModelForCausalLM
    model = auto.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").eval()
    with torch.inference_mode():
        expected = model(torch.tensor([PROMPT])).logits[0]
    harness = ModelHarness.of(folder, {"cache.block_size": 8})
    steps = [harness.step([("a", PROMPT[start:stop]), ("b", PROMPT[:3])])[0] for start, stop in ((0, 40), (40, 41))]
    assert relative_error(torch.cat([*steps, *harness.step([("a", PROMPT[41:])])]), expected) < 2e-5


@pytest.mark.slow
def test_the_names_of_blooms_authors(make_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    """Their files name no model, and their configs ``n_embed``."""
    folder = make_checkpoint("bloom", **BLOOM)
    again = tmp_path / "authors"
    again.mkdir()
    stored = json.loads((folder / "config.json").read_text())
    stored["n_embed"] = stored.pop("hidden_size")
    (again / "config.json").write_text(json.dumps(stored))
    tensors = load_file(folder / "model.safetensors")
    renamed = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    save_file(renamed, again / "model.safetensors", {"format": "pt"})
    expected, found = (ModelHarness.of(each).step([("a", PROMPT)])[0] for each in (folder, again))
    assert torch.equal(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("deterministic", [False, True])
def test_requests_beyond_what_they_were_trained_for(deterministic: bool, make_checkpoint: Callable[..., Path]) -> None:
    """Chunks, drafts and batches."""
    folder = make_checkpoint("bloom", **BLOOM, seq_length=64)
    greedy = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    prompts = [PROMPT[:50], PROMPT[:7], PROMPT[:50]]
    options: dict[str, Any] = {"dtype": "float32", "engine.deterministic": deterministic}
    with LLM(str(folder), **options) as llm:
        expected = [each.outputs[0].token_ids for each in llm.generate(prompts, greedy, use_tqdm=False)]
    options |= {"scheduler.max_num_batched_tokens": 16, "cache.block_size": 4, "speculation.use": "suffix_tree"}
    with LLM(str(folder), **options) as llm:
        assert [each.outputs[0].token_ids for each in llm.generate(prompts, greedy, use_tqdm=False)] == expected


@pytest.mark.parametrize(
    ("attention", "problem"),
    [
        ({"alibi": False}, "alibi = False"),
        ({"qk_ln": True}, "qk_ln = True"),
        ({"prefix_lm": True}, "prefix_lm = True"),
        ({"attn_type": "multiquery_attention"}, "attn_type = 'multiquery_attention'"),
        ("none", "attn_config = 'none'"),
    ],
)
def test_what_mpt_is_not_served_with(attention: Any, problem: str) -> None:
    sizes = {"d_model": 64, "n_heads": 4, "n_layers": 2, "vocab_size": 380}
    with pytest.raises(CheckpointError, match=problem):
        mpt.tree(config(architectures=["MptForCausalLM"], **sizes, attn_config=attention))


def test_a_residual_after_the_norm_is_refused() -> None:
    sizes = {"hidden_size": 64, "n_head": 4, "n_layer": 2, "vocab_size": 380}
    with pytest.raises(CheckpointError, match="apply_residual_connection_post_layernorm = True"):
        bloom.tree(config(architectures=["BloomForCausalLM"], **sizes, apply_residual_connection_post_layernorm=True))

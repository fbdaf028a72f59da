"""Heads that predict further tokens: loaded where they are wanted, and equal to their formula in torch."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from headed import HEADED, LAYERS, with_heads
from safetensors.torch import load_file, save_file
from torch import Tensor

from llmk import LLM, SamplingParams
from llmk.api import CheckpointError
from llmk.tree import lower
from llmk_models import deepseek_v3
from llmk_testing.comparing import relative_error
from llmk_testing.model import ModelHarness

from .configs import config

pytestmark = pytest.mark.slow

PROMPT = random.Random(5).choices(range(3, 380), k=40)
FOLLOWING = [*PROMPT[1:], 17]
WANTED = {"speculation.use": "mtp", "cache.block_size": 8}


@torch.inference_mode()
def oracle(whole: Path, tensors: dict[str, Tensor]) -> Tensor:
    """Logits of the tokens after the next, by transformers' layers and the paper's formula."""
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    model = auto.from_pretrained(whole, dtype=torch.float32, attn_implementation="eager").eval()
    at, eps = f"model.layers.{LAYERS}", model.config.rms_norm_eps
    positions = torch.arange(len(PROMPT))[None]
    mask = torch.full((len(PROMPT), len(PROMPT)), float("-inf")).triu(1)[None, None]
    own: dict[str, Any] = {"attention_mask": mask, "position_ids": positions}

    def norm(x: Tensor, name: str) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * tensors[f"{at}.{name}.weight"]

    x = model.model.embed_tokens(torch.tensor([PROMPT]))
    own["position_embeddings"] = model.model.rotary_emb(x, positions)
    for layer in model.model.layers[:LAYERS]:
        x = layer(x, **own)
    embedded = model.model.embed_tokens(torch.tensor([FOLLOWING]))
    both = torch.cat((norm(embedded, "enorm"), norm(model.model.norm(x), "hnorm")), -1)
    x = model.model.layers[LAYERS](both @ tensors[f"{at}.eh_proj.weight"].T, **own)
    logits: Tensor = model.lm_head(norm(x, "shared_head.norm"))[0]
    return logits


@torch.inference_mode()
def logits_of(harness: ModelHarness, chunks: Sequence[int]) -> Tensor:
    """The same by the head, in chunks of so many tokens, next to another request."""
    model: Any = harness.model
    forward, seen, found, start = model.forward, [], [], 0
    model.forward = lambda ids, context: seen.append((hidden := forward(ids, context), context)) or hidden
    for count in chunks:
        own = slice(start, start + count)
        harness.step([("other", PROMPT[5:8]), ("a", PROMPT[own])])
        hidden, context = seen.pop()
        following = torch.tensor([*PROMPT[6:9], *FOLLOWING[own]])
        found.append(model.logits(model.ahead[0](hidden, following, context))[3:])
        start += count
    return torch.cat(found).float()


@pytest.mark.parametrize("kind", HEADED)
@pytest.mark.parametrize("chunks", [(40,), (7, 16, 1, 16)], ids=str)
def test_a_head_predicts_what_its_formula_says(
    kind: str, chunks: Sequence[int], make_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    whole = make_checkpoint(kind, **HEADED[kind] | {"num_hidden_layers": LAYERS + 1})
    folder = with_heads(whole, tmp_path / "headed")
    (weights,) = folder.glob("*.safetensors")
    harness = ModelHarness.of(folder, WANTED)
    assert relative_error(logits_of(harness, chunks), oracle(whole, load_file(weights))) < 2e-5


def test_heads_are_left_out_unless_they_are_wanted(make_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    whole = make_checkpoint("deepseek_v3", **HEADED["deepseek_v3"] | {"num_hidden_layers": LAYERS + 1})
    folder = with_heads(whole, tmp_path / "headed")
    plain, headed = ModelHarness.of(folder), ModelHarness.of(folder, WANTED)
    assert plain.model.ahead == []
    more = headed.boot.facts.num_parameters - plain.boot.facts.num_parameters
    assert more == lower(deepseek_v3.tree(config_of(whole))).num_parameters - plain.boot.facts.num_parameters + sum(
        (64, 64, 64 * 128, 64)
    )
    assert len(headed.model.cache_specs()) == LAYERS + 1


def config_of(folder: Path) -> Any:
    return config(**json.loads((folder / "config.json").read_text()))


def test_answers_are_the_same_with_heads(make_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    whole = make_checkpoint("glm4_moe", **HEADED["glm4_moe"] | {"num_hidden_layers": LAYERS + 1})
    folder = with_heads(whole, tmp_path / "headed")
    greedy = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    answers = []
    for wanted in ("", "mtp"):
        with LLM(str(folder), dtype="float32", **{"speculation.use": wanted}) as llm:
            answers.append(llm.generate([PROMPT], greedy, use_tqdm=False)[0].outputs[0].token_ids)
    assert answers[0] == answers[1]


def test_a_head_that_the_files_lack_is_named(make_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    whole = make_checkpoint("deepseek_v3", **HEADED["deepseek_v3"] | {"num_hidden_layers": LAYERS + 1})
    folder = with_heads(whole, tmp_path / "headed")
    (weights,) = folder.glob("*.safetensors")
    tensors = load_file(weights)
    del tensors[f"model.layers.{LAYERS}.hnorm.weight"]
    save_file(tensors, weights, {"format": "pt"})
    ModelHarness.of(folder)
    with pytest.raises(CheckpointError, match=r"layers\.3\.hnorm\.weight"):
        ModelHarness.of(folder, WANTED)

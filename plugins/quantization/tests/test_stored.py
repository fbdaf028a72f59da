"""fp8 checkpoints answer as plain ones of the same numbers do, whole and cut; bad ones are refused with the reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from stored import LAYOUTS, stored, write
from threaded_ranks import ThreadedRanks
from torch import Tensor

from llmk import LLM, SamplingParams
from llmk.api import CheckpointError, LinearQuery
from llmk.engine import launch
from llmk.nn import Linear
from llmk_quantization.examples import MODELS, SIZES
from llmk_testing.checkpoints import write_checkpoint
from llmk_testing.model import ModelHarness

PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [300, 20, 7]]
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=3)
QUERY = "model.layers.0.self_attn.q_proj"


def answers(folder: Path, **settings: Any) -> tuple[list[Any], list[float]]:
    """Greedy tokens with the most likely tokens, and all log-probabilities."""
    with LLM(str(folder), dtype="float32", max_model_len=64, **settings) as llm:
        found = [result.outputs[0] for result in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]
    entries = [entry for output in found for entry in output.logprobs]
    tokens = [(entry.token_id, [token for token, _ in entry.top]) for entry in entries]
    return tokens, [logprob for entry in entries for _, logprob in entry.top]


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model", MODELS)
def test_answers_match_the_dequantized_weights(
    model: str, layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two processes too, between which the shares of fused weights and their scales are cut."""
    quantized, plain = write(tmp_path, model, LAYOUTS[layout])
    tokens, logprobs = answers(plain)
    for ranks in (1, 2):
        if ranks > 1:
            monkeypatch.setattr(launch, "start_executor", ThreadedRanks.start)
        found = answers(quantized, **({"parallel.tensor": ranks} if ranks > 1 else {}))
        assert found[0] == tokens
        assert found[1] == pytest.approx(logprobs, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layers_of_transformers_modules_read_them_too(layout: str, tmp_path: Path) -> None:
    quantized, plain = write(tmp_path, "dense", LAYOUTS[layout])
    tokens, logprobs = answers(plain)
    found = answers(quantized, **{"select.model.use": "models.transformers"})
    assert found[0] == tokens
    assert found[1] == pytest.approx(logprobs, abs=1e-4)


def test_a_scale_per_matrix_stays_its_own_in_packed_layers(tmp_path: Path) -> None:
    quantized, _ = write(tmp_path, "dense", LAYOUTS["fp8 static"])
    harness = ModelHarness.of(quantized, {"model.dtype": "float32"})
    tensors = load_file(quantized / "model.safetensors")
    scales = [tensors[f"model.layers.0.self_attn.{part}_proj.weight_scale"] for part in "qkv"]
    packed = next(layer.weight for layer in harness.model.weights if isinstance(layer, Linear))
    expected = torch.stack(scales).repeat_interleave(torch.tensor([256, 256, 256]))[:, None]
    assert torch.equal(packed.scale, expected)
    formats = {
        choice.site: choice.query.weight_format
        for choice in harness.boot.plan.choices
        if isinstance(choice.query, LinearQuery)
    }
    assert formats == {**dict.fromkeys(("qkv", "out", "gate_up", "down"), "fp8_channel"), "lm_head": "plain"}


def without(name: str) -> Callable[[dict[str, Tensor]], object]:
    return lambda tensors: tensors.pop(f"{QUERY}.{name}")


def replaced(name: str, make: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor]], object]:
    return lambda tensors: tensors.update({f"{QUERY}.{name}": make(tensors[f"{QUERY}.weight"])})


@pytest.mark.parametrize(
    ("layout", "spoil", "message"),
    [
        ("fp8 static", without("weight_scale"), r"q_proj lacks a scale \(weight_scale or weight_scale_inv\)"),
        ("fp8 static", without("weight"), r"q_proj stores input_scale, weight_scale, but no weight"),
        ("fp8 static", replaced("weight", Tensor.float), r"q_proj is stored as F32, not as F8_E4M3"),
        ("fp8 static", replaced("weight", lambda w: w[:-1].clone()), r"has shape \[255, 256\], not \[256, 256\]"),
        (
            "fp8 static",
            replaced("weight_scale", lambda w: torch.ones(3)),
            r"scale of F32 \[3\], not of any of \[\[\], \[1\]",
        ),
        (
            "fp8 block",
            replaced("weight_scale_inv", lambda w: torch.ones(2, 3)),
            r"F32 \[2, 3\], not of any of \[\[2, 2\]\]",
        ),
        ("fp8 static", replaced("g_idx", lambda w: torch.ones(3)), r"q_proj stores g_idx, which fp8 weights don't"),
        (
            "compressed channel",
            replaced("weight_scale", lambda w: torch.ones(1, 1)),
            r"qkv_proj mixes scales per output",
        ),
    ],
)
def test_bad_checkpoints_are_refused(
    layout: str, spoil: Callable[[dict[str, Tensor]], object], message: str, tmp_path: Path
) -> None:
    quantized, _ = write(tmp_path, "dense", LAYOUTS[layout])
    tensors = load_file(quantized / "model.safetensors")
    spoil(tensors)
    spoilt = stored(tmp_path / "spoilt", quantized, tensors, LAYOUTS[layout].config)
    with pytest.raises(CheckpointError, match=message):
        ModelHarness.of(spoilt)


def test_projections_of_partial_blocks_cannot_be_packed(tmp_path: Path) -> None:
    """Keys of 96 rows after queries of 192: a block of the packed weight would have two scales."""
    sizes = {**SIZES, "head_dim": 48, "num_key_value_heads": 2}
    plain = write_checkpoint(tmp_path / "plain", "qwen3", **sizes)
    tensors = {}
    for name, tensor in load_file(plain / "model.safetensors").items():
        quantized = LAYOUTS["fp8 block"].quantize(tensor) if "_proj" in name else {"weight": tensor}
        tensors |= {name.replace("weight", kind.replace("scale", "scale_inv")): t for kind, t in quantized.items()}
    folder = stored(tmp_path / "quantized", plain, tensors, LAYOUTS["fp8 block"].config)
    with pytest.raises(CheckpointError, match=r"qkv_proj packs \[192, 96, 96\] rows, which are not all whole blocks"):
        ModelHarness.of(folder)

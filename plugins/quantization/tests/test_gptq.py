"""GPTQ's and AWQ's configs mean what their tools mean by them, and what can't be followed is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from stored import QUANTIZED, stored
from torch import Tensor

from llmk.api import CheckpointError, SelectionError
from llmk_quantization.bits import from_nibbles, in_nibbles, unpacked
from llmk_quantization.examples import SIZES
from llmk_quantization.gptq_examples import restored_gptq, stored_awq, stored_gptq, transposed_words
from llmk_quantization.schemes import Scheme, gptq_schemes, unmatched
from llmk_testing.checkpoints import write_checkpoint
from llmk_testing.model import ModelHarness

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
QUERY = "model.layers.0.self_attn.q_proj"


def test_the_first_rule_that_matches_counts() -> None:
    rules = {"-:.*layers[.]1[.].*up": {}, "+:.*up_proj": {"bits": 8, "group_size": 64}, ".*": {"desc_act": True}}
    find = gptq_schemes(GPTQ | {"dynamic": rules})
    assert find("model.layers.1.mlp.up_proj") is None
    assert find("model.layers.0.mlp.up_proj") == Scheme(8, 64)
    assert find(QUERY) == Scheme(4, 32, ordered=True)
    assert find("lm_head") is None
    assert gptq_schemes(GPTQ | {"lm_head": True})("lm_head") == Scheme(4, 32)
    assert unmatched({"dynamic": rules | {"-:visual": {}}}, [QUERY]) == [*list(rules)[:2], "-:visual"]


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_numbers_of_any_bits(bits: int) -> None:
    numbers = torch.randint(1 << bits, (96, 5), generator=torch.Generator().manual_seed(bits)).to(torch.uint8)
    words = transposed_words(numbers, bits)
    assert words.shape == (96 * bits // 32, 5)
    assert torch.equal(unpacked(words.T.contiguous().view(torch.uint8), bits), numbers.T)
    if bits <= 4:
        assert torch.equal(from_nibbles(in_nibbles(numbers.T)), numbers.T)


def write(
    folder: Path, config: Mapping[str, Any], change: Callable[[dict[str, Tensor]], object], **options: Any
) -> Path:
    """A quantized checkpoint, changed, and a plain one of equal numbers."""
    plain = write_checkpoint(folder / "plain", "qwen3", **SIZES)
    tensors, quantized = load_file(plain / "model.safetensors"), {}
    for name, tensor in list(tensors.items()):
        if not QUANTIZED.fullmatch(name) and not (name == "lm_head.weight" and config.get("lm_head")):
            quantized[name] = tensor
            continue
        is_awq = config["quant_method"] == "awq"
        parts = stored_awq(tensor, 32) if is_awq else stored_gptq(tensor, 4, 32, **options)
        quantized |= {name.removesuffix("weight") + part: value for part, value in parts.items()}
        if not is_awq:
            tensors[name] = restored_gptq(parts, 4).contiguous()
    save_file(tensors, plain / "model.safetensors")
    change(quantized)
    return stored(folder / "quantized", plain, quantized, config)


def logits(folder: Path) -> Tensor:
    return ModelHarness.of(folder, {"model.dtype": "float32"}).step([("a", [5, 6, 7, 300, 20])])[0]


def test_biases_of_zeros_and_a_quantized_head(tmp_path: Path) -> None:
    """AutoGPTQ stores biases for layers that have none."""

    def biased(tensors: dict[str, Tensor]) -> None:
        tensors |= {f"{QUERY}.bias": torch.zeros(256, dtype=torch.float16)}

    quantized = write(tmp_path, GPTQ | {"lm_head": True, "tie_word_embeddings": False}, biased)
    torch.testing.assert_close(logits(quantized), logits(tmp_path / "plain"), rtol=1e-4, atol=1e-4)


def turned(tensors: dict[str, Tensor]) -> None:
    index = tensors["model.layers.0.self_attn.k_proj.g_idx"]
    index.copy_(index.flip(0))


@pytest.mark.parametrize(
    ("config", "change", "message"),
    [
        (GPTQ, lambda t: t.update({f"{QUERY}.bias": torch.ones(256)}), r"has no place for: \S*q_proj\.bias"),
        (GPTQ, lambda t: t.pop(f"{QUERY}.qzeros"), r"q_proj lacks qzeros"),
        (GPTQ | {"group_size": 64}, lambda t: None, r"down_proj has scales of .*groups of 64 \(group_size\)"),
        (GPTQ | {"bits": 8}, lambda t: None, r"down_proj has scales of .* for 256 inputs in groups of"),
        (GPTQ | {"desc_act": True}, lambda t: t.pop(f"{QUERY}.g_idx"), r"q_proj lacks g_idx, which desc_act says"),
        (GPTQ | {"desc_act": True}, turned, r"qkv_proj packs projections whose inputs are ordered differently"),
        (AWQ, lambda t: t.update({f"{QUERY}.scales": torch.ones(8, 8)}), r"q_proj has qweight of \[256, 32\] for 8"),
        (AWQ | {"modules_to_not_convert": ["self_attn"]}, lambda t: None, r"has no place for: \S*\.qweight"),
    ],
)
def test_files_that_do_not_fit_are_refused(
    config: dict[str, Any], change: Callable[[dict[str, Tensor]], object], message: str, tmp_path: Path
) -> None:
    folder = write(tmp_path, config, change)
    with pytest.raises(CheckpointError, match=message):
        ModelHarness.of(folder)


@pytest.mark.parametrize(("config", "name"), [(GPTQ, "gptq"), (GPTQ, "gptq_int8"), (AWQ, "awq")])
def test_a_pinned_method_names_the_bits_that_a_config_lacks(config: dict[str, Any], name: str, tmp_path: Path) -> None:
    folder = write(tmp_path, {key: value for key, value in config.items() if key != "bits"}, lambda t: None)
    with pytest.raises(SelectionError, match=rf"quantization\.{name} is pinned (?s:.)*bits: wanted .*, found None"):
        ModelHarness.of(folder, {"select.quantization.use": f"quantization.{name}"})

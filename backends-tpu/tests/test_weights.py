"""Checkpoints are read by the tree's names: what is packed is taken apart, what does not fit is refused by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file
from tiny_trees import experts, llama, weights

from llmk.api import Checkpoint, CheckpointError
from llmk.api.checkpoint import files_in
from llmk.tree import CausalLM
from llmk_tpu.weights import read_weights

Q, K, V = (f"model.layers.0.self_attn.{name}_proj.weight" for name in "qkv")


def stored(folder: Path, tensors: dict[str, Any], **config: Any) -> Checkpoint:
    """A checkpoint of these tensors."""
    save_file(tensors, folder / "model.safetensors")
    return Checkpoint(folder, config, weight_files=tuple(files_in(folder, "*.safetensors")))


def assert_read(model: CausalLM, checkpoint: Checkpoint, expected: dict[str, Any]) -> None:
    found = read_weights(model, checkpoint)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        np.testing.assert_array_equal(found[name], tensor)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_in_the_stored_dtype_without_what_the_model_ignores(dtype: Any, tmp_path: Path) -> None:
    own = {name: tensor.astype(dtype) for name, tensor in weights(llama()).items()}
    ignored = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32)}
    assert_read(llama(), stored(tmp_path, own | ignored), own)


def test_packed_projections(tmp_path: Path) -> None:
    model = llama(attention_bias=True)
    own = weights(model)
    packed = dict(own)
    for kind in ("weight", "bias"):
        parts = [packed.pop(name.replace("weight", kind)) for name in (Q, K, V)]
        packed[f"model.layers.0.self_attn.qkv_proj.{kind}"] = np.concatenate(parts)
    assert_read(model, stored(tmp_path, packed), own)


def test_experts_that_are_stacked_and_a_router_under_another_name(tmp_path: Path) -> None:
    model = experts()
    own = weights(model)
    other = dict(own)
    for layer in ("model.layers.0", "model.layers.1"):
        old, new = f"{layer}.block_sparse_moe", f"{layer}.mlp"
        each = [{name: other.pop(f"{old}.experts.{i}.{name}.weight") for name in ("w1", "w2", "w3")} for i in range(3)]
        other[f"{new}.experts.gate_up_proj"] = np.stack([np.concatenate((one["w1"], one["w3"])) for one in each])
        other[f"{new}.experts.down_proj"] = np.stack([one["w2"] for one in each])
        other[f"{new}.gate.weight"] = other.pop(f"{old}.gate.weight")
    assert_read(model, stored(tmp_path, other), own)


def test_a_tied_head_that_is_stored_too(tmp_path: Path) -> None:
    model = llama(tie_word_embeddings=True)
    own = weights(model)
    table = own["model.embed_tokens.weight"]
    assert_read(model, stored(tmp_path, own | {"lm_head.weight": table.copy()}), own)
    with pytest.raises(CheckpointError, match=r"lm_head\.weight differs from model\.embed_tokens\.weight"):
        read_weights(model, stored(tmp_path, own | {"lm_head.weight": table + 1}))


def test_what_is_missing_unknown_or_of_another_shape_is_named(tmp_path: Path) -> None:
    own = weights(llama())
    cases = {
        r"lack 1 of the model's \d+ tensors: .*0\.self_attn\.k_proj": {n: t for n, t in own.items() if n != K},
        r"has 1 tensors that the model does not: extra\.weight": own | {"extra.weight": own[K]},
        r"k_proj\.weight has the shape \[8, 23\], not \[8, 24\]": own | {K: own[K][:, 1:].copy()},
    }
    for message, tensors in cases.items():
        with pytest.raises(CheckpointError, match=message):
            read_weights(llama(), stored(tmp_path, tensors))


def test_stacked_experts_of_another_shape(tmp_path: Path) -> None:
    own = weights(experts())
    name = "model.layers.0.mlp.experts.gate_up_proj"
    kept = {key: tensor for key, tensor in own.items() if ".0.block_sparse_moe.experts" not in key or ".w2" in key}
    checkpoint = stored(tmp_path, kept | {name: np.ones((3, 5, 24), np.float32)})
    with pytest.raises(CheckpointError, match=r"w1\.weight has the shape \[3, 24\], not \[28, 24\]"):
        read_weights(experts(), checkpoint)


def test_files_and_formats_that_are_not_read(tmp_path: Path) -> None:
    checkpoint = stored(tmp_path, weights(llama()))
    with pytest.raises(CheckpointError, match="has quantized weights, which the JAX runtime does not read"):
        read_weights(llama(), replace(checkpoint, config={"quantization_config": {"quant_method": "fp8"}}))
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(CheckpointError, match=r"model\.safetensors can't be read: .*"):
        read_weights(llama(), checkpoint)
    file.unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors can't be read: No such file"):
        read_weights(llama(), checkpoint)

"""Checkpoints with heads that predict further tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from llmk_models.example_settings import LATENT, NO_AUXILIARY_LOSS, SIGMOID

LAYERS = 3
HEADED: dict[str, dict[str, Any]] = {
    "deepseek_v3": NO_AUXILIARY_LOSS,
    "deepseek_v32": {**NO_AUXILIARY_LOSS, "index_head_dim": 24, "index_n_heads": 16, "index_topk": 20},
    "glm4_moe_lite": {**LATENT, "n_shared_experts": 1, "first_k_dense_replace": 1},
    "glm4_moe": {**SIGMOID, "use_qk_norm": True, "attention_bias": True},
}
"""What the config of a model type has that is not as small as can be."""


def with_heads(whole: Path, folder: Path, count: int = 1) -> Path:
    """A checkpoint whose last ``count`` layers, of ``LAYERS + count``, are those of heads with random weights."""
    random_of = torch.Generator().manual_seed(3)

    def add(stored: dict[str, Tensor]) -> None:
        size = stored["model.norm.weight"].shape[0]
        for layer in range(LAYERS, LAYERS + count):
            at = f"model.layers.{layer}"
            for name in ("enorm", "hnorm", "shared_head.norm"):
                stored[f"{at}.{name}.weight"] = 1 + 0.3 * torch.randn(size, generator=random_of)
            stored[f"{at}.eh_proj.weight"] = torch.randn(size, 2 * size, generator=random_of) * size**-0.5
            for name in ("embed_tokens", "shared_head.head"):  # published checkpoints store them twice
                stored[f"{at}.{name}.weight"] = stored["model.embed_tokens.weight"].clone()

    stored = json.loads((whole / "config.json").read_text())
    own = {key: value[:LAYERS] for key, value in stored.items() if key.endswith("_types")}
    return changed(whole, folder, add, **own, num_hidden_layers=LAYERS, num_nextn_predict_layers=count)


def that_know(headed: Path, folder: Path) -> Path:
    """The same, where the next token depends on the last one alone, and the heads know how: layers add nothing, and a
    head passes on the embedding of the token that follows."""

    def know(stored: dict[str, Tensor]) -> None:
        for name, tensor in stored.items():
            if name.endswith(("o_proj.weight", "o_proj.bias", "down_proj.weight")):
                tensor.zero_()
            elif name.endswith("norm.weight"):
                tensor.fill_(1.0)
            elif name.endswith("eh_proj.weight"):
                size = tensor.shape[0]
                tensor.copy_(torch.cat((torch.eye(size), torch.zeros(size, size)), dim=1))

    return changed(headed, folder, know)


def changed(whole: Path, folder: Path, change: Callable[[dict[str, Tensor]], None], **config: Any) -> Path:
    """A copy of a checkpoint whose tensors went through ``change``, and whose config has other values."""
    folder.mkdir()
    for file in whole.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (weights,) = folder.glob("*.safetensors")
    tensors = load_file(weights)
    change(tensors)
    save_file(tensors, weights, {"format": "pt"})
    stored = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(stored | config))
    return folder

"""A file's options, in the terms of ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmk_gguf.architectures import ARCHITECTURES, COMMON, MIXTRAL, Architecture
from llmk_gguf.header import StoredBlocks
from llmk_gguf.metadata import Metadata
from llmk_gguf.values import read_values

_ARCHITECTURE = "general.architecture"
_GEMMA_LARGEST = {"gemma2": 46, "gemma3": 62}
"""Layers of the sizes (27B) whose attention is scaled by another number than the size of a head."""

Tensors = Mapping[str, StoredBlocks]


def architecture_of(metadata: Metadata) -> Architecture:
    """The architecture of a file. Raises CheckpointError for one that llmk has no family for."""
    name = metadata.required(metadata.text(_ARCHITECTURE), _ARCHITECTURE)
    if name not in ARCHITECTURES:
        raise metadata.refuse(
            f"holds a model of the architecture {name!r}, which is not served from GGUF; served are"
            f" {', '.join(ARCHITECTURES)}",
            hint="download the model's checkpoint in the Hugging Face layout, which more architectures are served from",
        )
    if name == "llama" and metadata.whole("llama.expert_count"):
        return MIXTRAL
    return ARCHITECTURES[name]


def read_config(metadata: Metadata, architecture: Architecture, tensors: Tensors) -> dict[str, Any]:
    """What ``config.json`` says of the model. ``tensors`` are the file's, by their names there. Raises
    CheckpointError."""
    name = metadata.required(metadata.text(_ARCHITECTURE), _ARCHITECTURE)
    config: dict[str, Any] = {
        "architectures": [architecture.family],
        "model_type": architecture.model_type,
        "dtype": _dtype(tensors),
        **architecture.fixed,
    }
    for key, option in (*COMMON.items(), *architecture.keys.items()):
        config[option] = metadata.required(_value(metadata, f"{name}.{key}"), f"{name}.{key}")
    for key, option in architecture.may.items():
        if (value := _value(metadata, f"{name}.{key}")) is not None:
            config[option] = value
    config["num_key_value_heads"] = metadata.whole(f"{name}.attention.head_count_kv") or config["num_attention_heads"]
    config["head_dim"] = _head_dim(metadata, name, config)
    config["vocab_size"] = _vocab_size(metadata, tensors)
    config["tie_word_embeddings"] = "output.weight" not in tensors
    config["attention_bias"] = "blk.0.attn_output.bias" in tensors
    config["mlp_bias"] = "blk.0.ffn_down.bias" in tensors
    config |= _rope(metadata, name, config, tensors)
    if name.startswith("gemma"):
        config |= _gemma(metadata, name, config)
    if not config.get("sliding_window"):
        config["sliding_window"] = None
    if name == "olmo2" and metadata.whole(f"{name}.attention.sliding_window"):
        raise metadata.refuse(
            "holds OLMo 3, of which GGUF does not say all", hint="serve its checkpoint in the Hugging Face layout"
        )
    return config


def _value(metadata: Metadata, key: str) -> int | float | None:
    """A number of either kind: the last part of the key says which."""
    last = key.rpartition(".")[2]
    if last.endswith(("epsilon", "scale", "softcapping", "freq_base", "freq_base_swa")):
        return metadata.number(key)
    return metadata.whole(key)


def _dtype(tensors: Tensors) -> str:
    """float16 for a file that has such weights, since bfloat16 would round them; else bfloat16, in which nearly all
    models were published."""
    kinds = {tensor.kind for tensor in tensors.values() if len(tensor.shape) > 1}
    if kinds == {"F32"}:
        return "float32"
    return "float16" if kinds <= {"F16", "F32"} else "bfloat16"


def _head_dim(metadata: Metadata, name: str, config: Mapping[str, Any]) -> int:
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    if not 0 < heads <= hidden:
        raise metadata.refuse(f"has {name}.attention.head_count = {heads} and {name}.embedding_length = {hidden}")
    size = metadata.whole(f"{name}.attention.key_length") or hidden // heads
    values = metadata.whole(f"{name}.attention.value_length") or size
    if size != values:
        raise metadata.refuse(f"has keys of {size} and values of {values} elements, which no served architecture has")
    return size


def _vocab_size(metadata: Metadata, tensors: Tensors) -> int:
    table = tensors.get("token_embd.weight")
    if table is None:
        raise metadata.refuse("has no tensor token_embd.weight")
    return table.shape[0]


def _rope(metadata: Metadata, name: str, config: Mapping[str, Any], tensors: Tensors) -> dict[str, Any]:
    """The options of rotary embeddings."""
    found: dict[str, Any] = {"rope_theta": metadata.number(f"{name}.rope.freq_base") or 10000.0}
    rotated = metadata.whole(f"{name}.rope.dimension_count") or config["head_dim"]
    if rotated != config["head_dim"]:
        found["partial_rotary_factor"] = rotated / config["head_dim"]
    scaling = f"{name}.rope.scaling"
    kind = metadata.text(f"{scaling}.type") or "none"
    factor = metadata.number(f"{scaling}.factor")
    original = metadata.whole(f"{scaling}.original_context_length") or config["max_position_embeddings"]
    if "rope_freqs.weight" in tensors:
        factors = read_values(tensors["rope_freqs.weight"])
        found["rope_scaling"] = {
            "rope_type": "longrope",
            "short_factor": factors,
            "long_factor": factors,
            "attention_factor": 1.0,
            "original_max_position_embeddings": config["max_position_embeddings"],
        }
    elif "rope_factors_long.weight" in tensors and "rope_factors_short.weight" in tensors:
        found["original_max_position_embeddings"] = original
        found["rope_scaling"] = {
            "rope_type": "longrope",
            "short_factor": read_values(tensors["rope_factors_short.weight"]),
            "long_factor": read_values(tensors["rope_factors_long.weight"]),
            "attention_factor": metadata.number(f"{scaling}.attn_factor") or 1.0,
        }
    elif kind == "linear" and factor:
        found["rope_scaling"] = {"rope_type": "linear", "factor": factor}
    elif kind == "yarn" and factor:
        found["rope_scaling"] = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
        for key, option in (("attn", "attention"),):
            if value := metadata.number(f"{scaling}.yarn_{key}_factor"):
                found["rope_scaling"][f"{option}_factor"] = value
        for key in ("beta_fast", "beta_slow"):
            if value := metadata.number(f"{scaling}.yarn_{key}"):
                found["rope_scaling"][key] = value
    elif kind != "none":
        raise metadata.refuse(f"has {scaling}.type = {kind!r}, which is not served, or lacks what that needs")
    return found


def _gemma(metadata: Metadata, name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """What GGUF leaves to the program that reads it."""
    found: dict[str, Any] = {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": config["head_dim"]}
    if config["num_hidden_layers"] == _GEMMA_LARGEST[name]:
        found["query_pre_attn_scalar"] = config["hidden_size"] // config["num_attention_heads"]
    if name == "gemma2":
        found["sliding_window"] = config.get("sliding_window") or 4096
        return {"attn_logit_softcapping": None, "final_logit_softcapping": None, **config, **found}
    if not config.get("sliding_window"):
        found["sliding_window_pattern"] = 1
    if "rope_theta" not in config or metadata.number(f"{name}.rope.freq_base") is None:
        found["rope_theta"] = 1_000_000.0
    return found

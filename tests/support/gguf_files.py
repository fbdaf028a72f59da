"""Writes checkpoints of the Hugging Face layout as GGUF, as the converters of llama.cpp do."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from k_quants import WRITERS
from safetensors.torch import load_file

from llmk_gguf.architectures import ARCHITECTURES, MIXTRAL, OUTER, Architecture

Values = npt.NDArray[Any]
Choose = Callable[[str], str]
"""The type of a matrix by its name in GGUF."""

NAMES = {
    "mistral": "llama",
    "mixtral": "llama",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    "gemma3_text": "gemma3",
}
"""What GGUF calls transformers' model types, where the names differ."""


def write_gguf(
    folder: Path,
    file: Path,
    kind: str | Choose = "F32",
    *,
    pre: str = "gpt-2",
    extra: Mapping[str, Values] | None = None,
    **metadata: Any,
) -> Path:
    """Writes the checkpoint in ``folder`` with matrices of ``kind``; norms and biases are F32. ``metadata`` are further
    entries, by keys with ``__`` for dots; ``None`` leaves an entry out. ``extra`` are further tensors."""
    config = json.loads((folder / "config.json").read_text())
    name = NAMES.get(config["model_type"], config["model_type"])
    architecture = MIXTRAL if config["model_type"] == "mixtral" else ARCHITECTURES[name]
    entries = {**_options(config, name, architecture), **_tokenizer(folder, pre)}
    entries |= {key.replace("__", "."): value for key, value in metadata.items()}
    tensors = {**_tensors(folder, config, architecture), **(extra or {})}
    writer = gguf.GGUFWriter(file, name)
    for key, value in entries.items():
        if value is not None:
            _add(writer, key, value)
    for tensor, values in tensors.items():
        wanted = "F32" if values.ndim < 2 or "_norm" in tensor or "gate_inp" in tensor else kind
        chosen = wanted if isinstance(wanted, str) else wanted(tensor)
        writer.add_tensor(tensor, quantized(values, chosen), raw_dtype=gguf.GGMLQuantizationType[chosen])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def write_demo(folder: Path, file: Path, kind: str) -> Path:
    """The demo model, whose pre-tokenizer has no name in GGUF, so that the file holds the whole tokenizer."""
    whole = (folder / "tokenizer.json").read_text()
    return write_gguf(folder, file, kind, tokenizer__huggingface__json=whole)


def quantized(values: Values, kind: str) -> Values:
    """``values`` as blocks of a type."""
    if kind in WRITERS:
        rows = WRITERS[kind](values.reshape(-1, values.shape[-1]))
        return rows.reshape(*values.shape[:-1], -1)
    found: Values = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
    return found


def _options(config: Mapping[str, Any], name: str, architecture: Architecture) -> dict[str, Any]:
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    rope = config.get("rope_parameters") or {}
    full = rope.get("full_attention", rope)
    found = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": heads,
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "rope.freq_base": float(full.get("rope_theta", 10000.0)),
    }
    if "sliding_attention" in rope:
        found["rope.freq_base_swa"] = float(rope["sliding_attention"]["rope_theta"])
    if (factor := full.get("partial_rotary_factor", 1.0)) != 1.0:
        found["rope.dimension_count"] = int(head_dim * factor)
    for key, option in (*architecture.keys.items(), *architecture.may.items()):
        if (
            value := config.get(option, config.get("num_local_experts") if key == "expert_count" else None)
        ) is not None:
            found[key] = float(value) if key.endswith(("scale", "softcapping")) else value
    return {f"{name}.{key}": value for key, value in found.items()}


def _tokenizer(folder: Path, pre: str) -> dict[str, Any]:
    stored = json.loads((folder / "tokenizer.json").read_text())
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    model, added = stored["model"], {token["id"]: token for token in stored["added_tokens"]}
    by_id = {index: text for text, index in model["vocab"].items()} | {
        i: token["content"] for i, token in added.items()
    }
    tokens = [by_id[index] for index in range(len(by_id))]
    ids = {text: index for index, text in by_id.items()}
    kinds = [(3 if added[i]["special"] else 4) if i in added else 1 for i in range(len(tokens))]
    found: dict[str, Any] = {"tokenizer.ggml.tokens": tokens, "tokenizer.chat_template": settings.get("chat_template")}
    if (folder / "chat_template.jinja").is_file():
        found["tokenizer.chat_template"] = (folder / "chat_template.jinja").read_text()
    if model.get("byte_fallback"):
        special = {"<unk>": 2, **{f"<0x{byte:02X}>": 6 for byte in range(256)}}
        kinds = [special.get(text, kind) for text, kind in zip(tokens, kinds, strict=True)]
        found |= {"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [-float(i) for i in range(len(tokens))]}
    else:
        merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
        found |= {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre, "tokenizer.ggml.merges": merges}
    found["tokenizer.ggml.token_type"] = kinds
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        text = settings.get(f"{name}_token")
        text = text["content"] if isinstance(text, dict) else text
        if text in ids:
            found[f"tokenizer.ggml.{key}_token_id"] = ids[text]
    return found


def _tensors(folder: Path, config: Mapping[str, Any], architecture: Architecture) -> dict[str, Values]:
    stored: dict[str, Values] = {}
    for part in sorted(folder.glob("*.safetensors")):
        stored |= {name: tensor.float().numpy() for name, tensor in load_file(part).items()}
    outer = {own: name for name, own in OUTER.items()}
    layer = {own: name for name, own in architecture.layer.items()}
    heads, found = (config["num_attention_heads"], config["num_key_value_heads"]), dict[str, Values]()
    for name, values in stored.items():
        values = values + architecture.norm_offset if name.endswith("norm.weight") else values
        if name in outer:
            found[outer[name]] = values
            continue
        if name == "lm_head.weight":
            continue
        index, module, end = re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.(\w+)", name).groups()  # type: ignore[union-attr]
        if module in layer:
            if architecture.permuted and layer[module] in ("attn_q", "attn_k"):
                values = permuted(values, heads[layer[module] == "attn_k"])
            found[f"blk.{index}.{layer[module]}.{end}"] = values[0] if layer[module] == "ffn_gate_inp_shexp" else values
    if architecture.experts:
        found |= _stacks(stored, config, architecture)
    return found


def _stacks(stored: Mapping[str, Values], config: Mapping[str, Any], architecture: Architecture) -> dict[str, Values]:
    found = {}
    for index in range(config["num_hidden_layers"]):
        at = f"model.layers.{index}.{architecture.expert_prefix}"
        count = sum(
            1
            for name in stored
            if re.fullmatch(re.escape(at) + rf"\.\d+\.{architecture.experts['ffn_down_exps']}\.weight", name)
        )
        for name, own in architecture.experts.items():
            found[f"blk.{index}.{name}.weight"] = np.stack([stored[f"{at}.{i}.{own}.weight"] for i in range(count)])
    return found


def permuted(values: Values, heads: int) -> Values:
    """Rows of queries or keys as the architecture ``llama`` has them."""
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_uint32(key, value)

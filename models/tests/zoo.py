"""A tiny config of every model type that transformers can generate text with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

TYPES: tuple[str, ...] = tuple(sorted({*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES} - {"gemma4_assistant"}))
"""But for one whose defaults its own class refuses."""

_SIZES: dict[str, int] = {
    "vocab_size": 99,
    "hidden_size": 64,
    "n_embd": 64,
    "d_model": 64,
    "dim": 64,
    "embedding_size": 64,
    "intermediate_size": 64,
    "ffn_dim": 64,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 2,
    "n_layer": 2,
    "n_layers": 2,
    "num_layers": 2,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "num_attention_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "num_heads": 4,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_kv_heads": 2,
    "n_positions": 128,
    "n_ctx": 128,
    "max_seq_len": 128,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "num_kv_shared_layers": 0,
    "vocab_size_per_layer_input": 99,
    "hidden_size_per_layer_input": 16,
}
"""What is made small, wherever it stands."""
_OFTEN_NULL = ("num_key_value_heads", "num_kv_heads", "num_experts_per_tok")
_GEMMA4 = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 99,
    "vocab_size_per_layer_input": 99,
    "hidden_size_per_layer_input": 16,
}
_OWN: dict[str, dict[str, Any]] = {
    "axk1": {"n_group": 2, "topk_group": 1},
    "bailing_hybrid": {"num_experts_per_token": 2, "n_group": 2, "topk_group": 1},
    "kimi_linear": {"num_experts_per_token": 2},
    "deepseek_v4": {"o_groups": 2},
    "dots1": {"n_routed_experts": 4, "n_group": 2, "topk_group": 1},
    "deepseek_v32": {"n_group": 2, "topk_group": 1},
    "mamba2": {"num_heads": 4, "head_dim": 32, "n_groups": 2},
    "dots3_note_text": {"num_key_value_heads": 4},
    "gemma4": {"text_config": _GEMMA4},
    "gemma4_text": _GEMMA4,
}
"""What some types need besides, for their sizes to agree."""


def write_tiny(folder: Path, model_type: str) -> Path:
    """Writes ``config.json`` of a tiny model of that type, and nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    config = tiny(model_type)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def tiny(model_type: str) -> dict[str, Any]:
    """The config of a tiny model of that type, as ``save_pretrained`` writes it: without what is the type's default."""
    kind = CONFIG_MAPPING[model_type]
    small, own = _small(json.loads(kind().to_json_string(use_diff=False))), _OWN.get(model_type, {})
    try:
        config = kind(**{**small, **own})
    except Exception:  # what it says of single layers belongs to as many layers as it has
        few = {key: value for key, value in small.items() if "layer" not in key and "config" not in key}
        config = kind(**{**few, **own})
    config.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]]
    written: dict[str, Any] = json.loads(config.to_json_string())
    return written


def _small(config: dict[str, Any]) -> dict[str, Any]:
    """What of a config is changed, its own configs included."""
    changes: dict[str, Any] = {}
    for key, value in config.items():
        if key in _SIZES and (isinstance(value, int) or (value is None and key in _OFTEN_NULL)):
            changes[key] = min(value or 2, _SIZES[key])
        elif key in ("activation_sparsity_pattern", "intermediate_size") and isinstance(value, list):
            changes[key] = [min(each, 64) for each in value[:2]]
        elif key in ("layer_types", "mlp_layer_types") and isinstance(value, list):
            changes[key] = [*dict.fromkeys(value), *value][:2]
        elif key.endswith("_config") and isinstance(value, dict):
            changes[key] = {**value, **_small(value)}
        elif key.endswith("token_id") and isinstance(value, (int, list)):
            changes[key] = 3
        elif key in ("head_dim", "rotary_dim"):
            changes[key] = 16
        elif key == "per_layer_config":
            changes[key] = {}
    return changes

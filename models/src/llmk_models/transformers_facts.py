"""The facts of any transformers decoder, from the common keys of ``config.json``. Imports no torch.

When the model is loaded, they are compared with the behaviour of its modules, see ``transformers_watch``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmk.api import AttentionFacts, Checkpoint, ModelFacts
from llmk.nn.tensor_file import read_headers, weight_files
from llmk_models.config import (
    checked,
    checkpoint_dtype,
    default_length,
    head_size,
    layer_windows,
    required,
    shared_heads,
)
from llmk_models.transformers_refusals import refuse_unservable

_SINK_ARCHITECTURES = ("GptOssForCausalLM",)


def describe(checkpoint: Checkpoint) -> ModelFacts:
    """The facts of a decoder in which all layers have softmax attention.

    RoPE is not rescaled by the longest sequence in a batch, as transformers does: models with dynamic scaling are
    served up to the length at which it starts, and LongRoPE is scaled equally for all (see :func:`default_length`).

    Raises:
        UnknownArchitecture: the model is of another kind, or transformers is not installed.
        CheckpointError: the config lacks a size.
    """
    refuse_unservable(checkpoint)  # first, because models of another kind may have other keys
    return _describe(checkpoint)


@checked
def _describe(checkpoint: Checkpoint) -> ModelFacts:
    config = checkpoint.config
    num_layers = required(checkpoint, "num_hidden_layers", "n_layer", "n_layers", "num_layers")
    num_heads = required(checkpoint, "num_attention_heads", "n_head", "n_heads", "num_heads")
    hidden_size = required(checkpoint, "hidden_size", "n_embd", "d_model")
    vocab_size = required(checkpoint, "vocab_size")
    windows = _windows(config, num_layers)
    sites = ["attention" if window is None else "sliding_attention" for window in windows]
    attention = tuple(
        AttentionFacts(
            site=site,
            num_layers=sites.count(site),
            num_heads=num_heads,
            num_kv_heads=shared_heads(checkpoint, num_heads, _num_kv_heads(config, num_heads)),
            head_dim=head_size(checkpoint, config.get("head_dim"), hidden_size, num_heads),
            sliding_window=windows[sites.index(site)],
            softcap=config.get("attn_logit_softcapping"),
            sinks=checkpoint.architecture in _SINK_ARCHITECTURES,
            scale=_scale(config),
        )
        for site in dict.fromkeys(sites)
    )
    longest = _max_model_len(checkpoint)
    default_len, default_why = default_length(config, longest)
    return ModelFacts(
        architecture=checkpoint.architecture,
        model="models.transformers",
        num_layers=num_layers,
        hidden_size=hidden_size,
        vocab_size=vocab_size,
        max_model_len=longest,
        dtype=checkpoint_dtype(config),
        num_parameters=_num_parameters(checkpoint, num_layers, hidden_size, vocab_size),
        attention=attention,
        default_model_len=default_len,
        default_why=default_why,
    )


def _num_kv_heads(config: Mapping[str, Any], num_heads: int) -> int:
    for key in ("num_key_value_heads", "num_kv_heads", "n_head_kv"):
        if config.get(key) is not None:
            return int(config[key])
    return 1 if config.get("multi_query") else num_heads


def _windows(config: Mapping[str, Any], num_layers: int) -> tuple[int | None, ...]:
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    return layer_windows(config, num_layers, window, 0)


def _scale(config: Mapping[str, Any]) -> float | None:
    if config.get("attention_multiplier") is not None:
        return float(config["attention_multiplier"])
    if config.get("query_pre_attn_scalar") is not None:
        return float(config["query_pre_attn_scalar"] ** -0.5)
    return None


def _max_model_len(checkpoint: Checkpoint) -> int:
    longest = required(checkpoint, "max_position_embeddings", "n_positions", "max_seq_len", "n_ctx")
    config = checkpoint.config
    stored = config.get("rope_parameters") or config.get("rope_scaling") or {}
    lengths = [longest]
    for rope in (stored, *stored.values()):
        if isinstance(rope, Mapping) and (rope.get("rope_type") or rope.get("type")) == "dynamic":
            original = config.get("original_max_position_embeddings") or rope.get("original_max_position_embeddings")
            lengths.append(original or longest)
    return int(min(lengths))


def _num_parameters(checkpoint: Checkpoint, num_layers: int, hidden_size: int, vocab_size: int) -> int:
    """Exact if the weights are present; else that of a Llama of the same size."""
    if checkpoint.weight_files:
        return sum(tensor.num_elements for tensor in read_headers(weight_files(checkpoint)))
    inner = checkpoint.config.get("intermediate_size") or 4 * hidden_size
    return num_layers * hidden_size * (4 * hidden_size + 3 * inner) + 2 * vocab_size * hidden_size

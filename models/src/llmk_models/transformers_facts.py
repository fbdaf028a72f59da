"""What any transformers decoder looks like, by the keys that its ``config.json`` shares with others. Imports no torch.

What is said here is compared with what the modules really do when they are loaded, see ``transformers_watch``.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from llmk.api import AttentionFacts, Checkpoint, ModelFacts, UnknownArchitecture
from llmk.nn.tensor_file import read_headers, weight_files
from llmk_models.config import checked, checkpoint_dtype, layer_windows, required

_RECURRENT_KEYS = (
    "ssm_cfg",
    "ssm_state_size",
    "state_size",
    "mamba_d_state",
    "time_step_rank",
    "linear_num_value_heads",
    "conv_L_cache",
    "attention_hidden_size",
)
_SOFTMAX_LAYERS = ("full_attention", "sliding_attention")
_LATENT_KEYS = ("kv_lora_rank",)
_SINK_ARCHITECTURES = ("GptOssForCausalLM",)
_SUFFIXES = ("ForCausalLM", "LMHeadModel")
_BATCH_DEPENDENT_ROPE = ("dynamic", "longrope")


@checked
def describe(checkpoint: Checkpoint) -> ModelFacts:
    """The facts of a decoder whose layers all attend by softmax.

    Rotary positions that transformers rescales by the longest sequence in a batch are served up to the length at which
    that begins, so that a request's tokens don't depend on its neighbours.

    Raises:
        UnknownArchitecture: where the model is of another kind, or transformers is not installed.
        CheckpointError: where the config lacks a size.
    """
    refuse_unservable(checkpoint)
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
            num_kv_heads=_num_kv_heads(config, num_heads),
            head_dim=config.get("head_dim") or hidden_size // num_heads,
            sliding_window=windows[sites.index(site)],
            softcap=config.get("attn_logit_softcapping"),
            sinks=checkpoint.architecture in _SINK_ARCHITECTURES,
            scale=_scale(config),
        )
        for site in dict.fromkeys(sites)
    )
    return ModelFacts(
        architecture=checkpoint.architecture,
        model="models.transformers",
        num_layers=num_layers,
        hidden_size=hidden_size,
        vocab_size=vocab_size,
        max_model_len=_max_model_len(checkpoint),
        dtype=checkpoint_dtype(config),
        num_parameters=_num_parameters(checkpoint, num_layers, hidden_size, vocab_size),
        attention=attention,
    )


def refuse_unservable(checkpoint: Checkpoint) -> None:
    """Raises UnknownArchitecture, with the reason, for models that a cache of keys and values can't serve."""
    config, name = checkpoint.config, checkpoint.architecture or "a checkpoint without architectures"
    odd_layers = sorted(set(config.get("layer_types") or ()) - set(_SOFTMAX_LAYERS))
    reason = ""
    if config.get("is_encoder_decoder"):
        reason = "it is an encoder-decoder"
    elif any(key in config for key in ("vision_config", "audio_config", "text_config")):
        reason = "it takes more than text"
    elif not name.endswith(_SUFFIXES):
        reason = f"it is not a causal language model ({' or '.join('…' + suffix for suffix in _SUFFIXES)})"
    elif odd_layers or any(key in config for key in _RECURRENT_KEYS):
        reason = f"it has layers that are no softmax attention ({', '.join(odd_layers) or 'recurrent state'})"
    elif any(config.get(key) for key in _LATENT_KEYS):
        reason = "its attention caches latent vectors, which they never hand to an attention backend"
    elif config.get("alibi") or config.get("position_embedding_type") == "alibi":
        reason = "its attention adds ALiBi biases, which no attention backend takes"
    if reason:
        raise UnknownArchitecture(
            f"{name} can't be served through transformers' modules: {reason}",
            hint="install a wheel that implements it natively; `llmk plugins` lists what is installed",
        )
    if find_spec("transformers") is None:
        raise UnknownArchitecture(
            f"{name} has no native implementation, and transformers, which may have one, is not installed",
            hint="pip install transformers",
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
        if isinstance(rope, Mapping) and (rope.get("rope_type") or rope.get("type")) in _BATCH_DEPENDENT_ROPE:
            original = config.get("original_max_position_embeddings") or rope.get("original_max_position_embeddings")
            lengths.append(original or longest)
    return int(min(lengths))


def _num_parameters(checkpoint: Checkpoint, num_layers: int, hidden_size: int, vocab_size: int) -> int:
    """Exact where the weights are there; else that of a Llama of the same size."""
    if checkpoint.weight_files:
        return sum(tensor.num_elements for tensor in read_headers(weight_files(checkpoint)))
    inner = checkpoint.config.get("intermediate_size") or 4 * hidden_size
    return num_layers * hidden_size * (4 * hidden_size + 3 * inner) + 2 * vocab_size * hidden_size

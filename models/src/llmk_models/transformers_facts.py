"""The facts of any transformers decoder, from the common keys of ``config.json``. Imports no torch.

When the model is loaded, they are compared with the behaviour of its modules, see ``transformers_watch``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmk.api import Checkpoint, ModelFacts
from llmk.nn.tensor_file import read_headers, weight_files
from llmk.tree import Attend, Config, Heads, Linear, Sites, default_length
from llmk_models.transformers_experts import expert_layers
from llmk_models.transformers_linear import can_cut, linear_layers
from llmk_models.transformers_refusals import refuse_unservable
from llmk_models.windows import layer_windows

_SINKS = ("flint", "gpt_oss", "granite_swa", "granitemoe_swa")
"""Model types whose heads have sinks."""
_ONE_KEY_HEAD = ("gpt_bigcode",)
"""Model types that have one key-value head, unless ``multi_query`` says otherwise."""
_TWICE = ("longcat_flash",)
"""Model types whose layers attend twice."""
_NUMBERS = ("rms_norm_eps", "layer_norm_epsilon")
_POSITIVE = ("rope_theta", "partial_rotary_factor")
_FLAGS = ("tie_word_embeddings", "attention_bias", "mlp_bias")
"""Keys that are only checked here, because the modules fail on wrong values with errors that don't name them."""


def describe(checkpoint: Checkpoint) -> ModelFacts:
    """The facts of a decoder in which all layers have softmax attention.

    RoPE is not rescaled by the longest sequence in a batch, as transformers does: models with dynamic scaling are
    served up to the length at which it starts, and LongRoPE is scaled equally for all (see :func:`default_length`).

    Raises:
        UnknownArchitecture: the model is of another kind, or transformers is not installed.
        CheckpointError: the config lacks a size.
    """
    refuse_unservable(checkpoint)  # first, because models of another kind may have other keys
    return _facts(Config(checkpoint))


def _facts(config: Config) -> ModelFacts:
    _check(config)
    num_layers = config.num_layers("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    hidden_size = config.size(config.first("hidden_size", "n_embd", "d_model"))
    vocab_size = config.size("vocab_size")
    longest = _max_model_len(config)
    default_len, default_why = default_length(config, longest)
    num_layers *= 2 if config.text("model_type", "") in _TWICE else 1
    layers = decoder_layers(config)
    attention, experts = _attention(config, num_layers, hidden_size), expert_layers(config, hidden_size)
    sites = Sites([*attention, *layers, *experts], config.dtype)
    return ModelFacts(
        architecture=config.architecture,
        model="models.transformers",
        num_layers=num_layers,
        hidden_size=hidden_size,
        vocab_size=vocab_size,
        max_model_len=longest,
        dtype=config.dtype,
        num_parameters=_num_parameters(config, num_layers, hidden_size, vocab_size),
        attention=sites.of("attention"),
        linear=sites.of("linear"),
        moe=sites.of("moe"),
        parallel=("tensor",) if any(layer.cut for layer in layers) else (),
        default_model_len=default_len,
        default_why=default_why,
    )


def decoder_layers(config: Config) -> tuple[Linear, ...]:
    """The decoder's linear layers, as far as names say; when the model is loaded, those that are others are left to
    its own modules."""
    heads, _ = _heads(config, config.size(config.first("hidden_size", "n_embd", "d_model")))
    whole = linear_layers(config, heads, cut=False)
    return linear_layers(config, heads, cut=True) if can_cut(config, whole, heads) else whole


def _check(config: Config) -> None:
    for key in _NUMBERS:
        config.number(key, 0.0)
    for key in _POSITIVE:
        config.positive(key, 1.0)
    for key in _FLAGS:
        config.flag(key, False)


def _attention(config: Config, num_layers: int, hidden_size: int) -> list[Attend]:
    """Each layer's attention; its norms, RoPE and projections are the modules' own."""
    heads, value_dim = _heads(config, hidden_size)
    own: dict[str, Any] = {
        "heads": heads.count,
        "kv_heads": heads.kv,
        "head_dim": heads.dim,
        "rope": None,
        "softcap": config.nullable(config.positive, "attn_logit_softcapping", None),
        "sinks": config.text("model_type", "") in _SINKS,
        "value_dim": value_dim,
        "scale": _scale(config),
    }
    switched_off = not config.flag("use_sliding_window", True)
    window = None if switched_off else config.nullable(config.count, "sliding_window", None)
    return [
        Attend(role="attention" if each is None else "sliding_attention", window=each, **own)
        for each in layer_windows(config, num_layers, window or None, first=0)
    ]


def _heads(config: Config, hidden_size: int) -> tuple[Heads, int | None]:
    """The heads, and the size of their values if that is another. Latent attention hands on expanded keys and values,
    of all heads."""
    count = config.size(config.first("num_attention_heads", "n_head", "n_heads", "num_heads"))
    if config.count("kv_lora_rank", 0):
        dim = config.size("qk_nope_head_dim", 128) + config.size("qk_rope_head_dim", 64)
        value_dim = config.size("v_head_dim", 128)
        return Heads(count, count, dim), None if value_dim == dim else value_dim
    if config.text("model_type", "") in _ONE_KEY_HEAD:
        one = 1 if config.flag("multi_query", True) else count
        return Heads.checked(config, count, one, None, hidden_size), None
    kv = 1 if config.flag("multi_query", False) else None
    for key in ("n_head_kv", "num_kv_heads", "num_key_value_heads"):
        kv = config.size(key, kv)
    own_dim = config.nullable(config.size, "head_dim", None)
    return Heads.checked(config, count, kv, own_dim, hidden_size), None


def _scale(config: Config) -> float | None:
    scalar = config.positive("query_pre_attn_scalar", None)
    return config.number("attention_multiplier", None if scalar is None else scalar**-0.5)


def _max_model_len(config: Config) -> int:
    longest = config.size(config.first("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx"))
    stored = config.rope("rope_parameters") or config.rope("rope_scaling")
    lengths = [longest]
    for rope in (stored, *stored.values()):
        if isinstance(rope, Mapping) and (rope.get("rope_type") or rope.get("type")) == "dynamic":
            original = config.size("original_max_position_embeddings", None)
            lengths.append(original or rope.get("original_max_position_embeddings") or longest)
    return int(min(lengths))


def _num_parameters(config: Config, num_layers: int, hidden_size: int, vocab_size: int) -> int:
    """Exact if the weights are present; else that of a Llama of the same size."""
    if config.checkpoint.weight_files:
        return sum(tensor.num_elements for tensor in read_headers(weight_files(config.checkpoint)))
    inner = config.size("intermediate_size", 4 * hidden_size)
    return num_layers * hidden_size * (4 * hidden_size + 3 * inner) + 2 * vocab_size * hidden_size

"""Which models of the transformers library can't be served with a paged K/V cache, and which mechanism prevents it.

The check uses the config's keys, and its ``model_type`` for missing keys, because ``save_pretrained`` omits the
defaults of the type. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from llmk.api import Checkpoint, UnknownArchitecture

_SUFFIXES = ("ForCausalLM", "LMHeadModel")
_SERVED_LAYERS = ("full_attention", "sliding_attention")
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
_INDEXED_KEYS = ("index_topk", "index_n_heads")
_MULTIMODAL_KEYS = ("vision_config", "audio_config", "text_config")

_RECURRENT = "it keeps a recurrent state"
_ENCODER = "it is an encoder: each token attends to later ones, too"
_ENCODER_DECODER = "it is an encoder-decoder: it attends to the states of an encoder, too"
_INDEXED = "indexed attention: an indexer picks the tokens that each attends to"
_ALIBI = "its attention adds ALiBi biases, which transformers' modules don't pass on"
_MULTIMODAL = "it takes more than text"
_OWN_ATTENTION = "its modules compute attention themselves, not by transformers' attention interface"

_LAYERS: Mapping[str, str] = {
    "chunked_attention": "chunked attention: a token attends only to its own chunk",
    "window_attention": "attention within windows that do not slide",
    "reference_sliding_attention": "attention to a sliding window and to reference tokens",
    "indexed_attention": _INDEXED,
    "deepseek_sparse_attention": _INDEXED,
    "compressed_sparse_attention": "compressed sparse attention: tokens attend to picked blocks of compressed keys",
    "heavily_compressed_attention": "attention to compressed keys",
    "minimax_m3_sparse": "sparse attention: tokens attend to picked blocks",
    "linear_attention": "linear attention, which has a recurrent state",
    "conv": "convolutions, which have a recurrent state",
    "hybrid": "attention and layers with a recurrent state",
    "hybrid_sliding": "attention and layers with a recurrent state",
    "mamba": "a selective scan, which has a recurrent state",
    "recurrent": "a recurrent state",
}

_TYPES: Mapping[str, str] = {
    **dict.fromkeys(
        ("bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "marian", "mbart", "musicgen",
         "musicgen_melody", "mvp", "pegasus", "plbart", "prophetnet", "trocr", "whisper"),
        _ENCODER_DECODER,
    ),
    **dict.fromkeys(
        ("bamba", "falcon_h1", "falcon_mamba", "jamba", "lfm2", "lfm2_moe", "lfm3", "mamba", "mamba2", "nemotron_h",
         "recurrent_gemma", "rwkv", "xlstm", "zamba", "zamba2"),
        _RECURRENT,
    ),
    **dict.fromkeys(
        ("axk2", "deepseek_v32", "glm_moe_dsa", "hy_v4"), f"it has layers of {_INDEXED}"
    ),
    **dict.fromkeys(
        ("bailing_hybrid", "granitemoehybrid", "kimi_linear", "minimax", "olmo_hybrid", "qwen3_5_text",
         "qwen3_5_moe_text", "qwen3_next", "qwen4_exp_text"),
        f"it has layers of {_LAYERS['linear_attention']}",
    ),
    **dict.fromkeys(("inkling_text", "inkling2_text", "zaya"), f"it has layers of {_LAYERS['hybrid']}"),
    **dict.fromkeys(
        ("emu3", "fuyu", "gemma3", "gemma3n", "gemma4", "gemma4_unified", "git", "got_ocr2", "llama4", "mllama",
         "moss_transcribe_diarize", "phi4_multimodal", "qwen3_5", "qwen3_5_moe", "qwen4_exp", "dots3_note"),
        _MULTIMODAL,
    ),
    **dict.fromkeys(("bloom", "mpt"), _ALIBI),
    **dict.fromkeys(("codegen", "gpt_neo", "gpt_neox_japanese", "gptj", "openai-gpt", "xglm", "xlm"), _OWN_ATTENTION),
    "deepseek_v4": f"it has layers of {_LAYERS['compressed_sparse_attention']}",
    "llama4_text": f"it has layers of {_LAYERS['chunked_attention']}",
    **dict.fromkeys(
        ("gemma4_assistant", "gemma4_unified_assistant"),
        "it drafts for another model, whose keys and values it attends to",
    ),
    "blt": "it reads bytes, which a separate model groups into patches",
    "cpmant": "its attention adds learned biases of positions, which no attention backend supports",
    "diffllama": "its attention is the difference of two softmaxes, which its modules compute themselves",
    "doge": "its attention adds learned values to the mask, which no attention backend supports",
    "gemma3n_text": "its later layers share the keys and values of earlier ones",
    "hrm_text": "it runs its layers several times for each token",
    "moshi": "it takes and makes speech",
    "reformer": "tokens attend to hashed buckets of tokens",
    "xlnet": "its attention has two streams, and relative positions",
}  # fmt: skip
"""The mechanism by model type, for types whose config need not state it."""

_ENCODERS = frozenset((
    "bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie", "megatron-bert", "rembert",
    "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "xlm-roberta", "xlm-roberta-xl", "xmod",
))  # fmt: skip
"""Model types that are encoders unless ``is_decoder`` says otherwise."""


def refuse_unservable(checkpoint: Checkpoint) -> None:
    """Raises UnknownArchitecture, with the mechanism, for models that can't be served with a K/V cache."""
    name = checkpoint.architecture
    if not name:
        raise UnknownArchitecture(
            f"config.json of {checkpoint.path} names no architecture",
            hint='add what such a model is to it, as "architectures": ["LlamaForCausalLM"]; or download it again',
        )
    if checkpoint.reader is not None:
        raise UnknownArchitecture(
            f"{name} in {checkpoint.path} can't be served through transformers' modules, which read folders alone",
            hint="serve the model's checkpoint in the Hugging Face layout",
        )
    if reason := next(_reasons(checkpoint.config, name), ""):
        raise UnknownArchitecture(
            f"{name} can't be served through transformers' modules: {reason}",
            hint="install a wheel that implements it natively; `llmk plugins` lists what is installed",
        )
    if find_spec("transformers") is None:
        raise UnknownArchitecture(
            f"{name} has no native implementation, and transformers, which may have one, is not installed",
            hint="pip install transformers",
        )


def _reasons(config: Mapping[str, Any], name: str) -> Iterator[str]:
    if config.get("is_encoder_decoder"):
        yield _ENCODER_DECODER
    if any(config.get(key) for key in _MULTIMODAL_KEYS):
        yield _MULTIMODAL
    yield from _of_layers(config)
    if config.get("alibi") or config.get("position_embedding_type") == "alibi":
        yield _ALIBI
    if config.get("use_bidirectional_attention") in (True, "all"):
        yield "its attention is not causal: each token attends to later ones, too"
    if shared := config.get("num_kv_shared_layers"):
        yield f"its last {shared} layers share the keys and values of earlier ones"
    kind = str(config.get("model_type", ""))
    if kind in _ENCODERS and not config.get("is_decoder"):
        yield _ENCODER
    if kind in _TYPES:
        yield _TYPES[kind]
    if not name.endswith(_SUFFIXES):
        yield f"it is not a causal language model ({' or '.join('…' + suffix for suffix in _SUFFIXES)})"


def _of_layers(config: Mapping[str, Any]) -> Iterator[str]:
    types = config.get("layer_types")
    kinds = [kind for kind in types if isinstance(kind, str)] if isinstance(types, list) else []
    if odd := [kind for kind in dict.fromkeys(kinds) if kind not in _SERVED_LAYERS]:
        yield "it has layers of " + "; of ".join(_LAYERS.get(kind, f"the unknown kind {kind!r}") for kind in odd)
    if any(config.get(key) for key in _INDEXED_KEYS):
        yield f"it has layers of {_INDEXED}"
    if config.get("attention_chunk_size"):
        yield f"it has layers of {_LAYERS['chunked_attention']}"
    if any(config.get(key) for key in _RECURRENT_KEYS):
        yield _RECURRENT

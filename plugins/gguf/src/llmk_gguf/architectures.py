"""What GGUF calls the architectures that llmk has families for, their options and their tensors.

Names and meanings are those of llama.cpp's converters (``conversion/`` there) and of the ``gguf`` package's constants.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

COMMON: Mapping[str, str] = {
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "context_length": "max_position_embeddings",
}
"""Keys that every decoder has, below the architecture's name, and those of ``config.json`` that they become."""

OUTER: Mapping[str, str] = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
"""Tensors outside of the layers."""

_ATTENTION = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
_QK_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_MLP = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_PRE_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_POST_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_SANDWICH = {"attn_norm": "input_layernorm", "ffn_norm": "pre_feedforward_layernorm", **_POST_NORMS}
_LLAMA = {**_ATTENTION, **_MLP, **_PRE_NORMS}
_EXPERTS = {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"}
_WINDOW = {"attention.sliding_window": "sliding_window"}
_MOE = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """An architecture of GGUF.

    ``family`` and ``model_type`` are transformers' names. ``keys`` are options that a file must have in addition to
    :data:`COMMON`, and ``may`` those that it may have; ``fixed`` are values of ``config.json`` that no file states.
    ``layer`` maps modules of a layer; ``experts`` those that are stacks of one module per expert, which are named
    ``expert_prefix.{expert}.{module}``. ``permuted``: the rows of queries and keys are stored with the two halves of
    each head interleaved, as for a rotation of neighbours. ``norm_offset`` was added to the weights of norms.
    """

    family: str
    model_type: str
    layer: Mapping[str, str]
    keys: Mapping[str, str] = field(default_factory=dict)
    may: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    experts: Mapping[str, str] = field(default_factory=dict)
    expert_prefix: str = ""
    permuted: bool = False
    norm_offset: float = 0.0


_DENSE_SIZE = {"feed_forward_length": "intermediate_size"}

ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(family="LlamaForCausalLM", model_type="llama", layer=_LLAMA, keys=_DENSE_SIZE, permuted=True),
    "qwen2": Architecture(family="Qwen2ForCausalLM", model_type="qwen2", layer=_LLAMA, keys=_DENSE_SIZE),
    "qwen3": Architecture(
        family="Qwen3ForCausalLM", model_type="qwen3", layer={**_LLAMA, **_QK_NORMS}, keys=_DENSE_SIZE
    ),
    "qwen2moe": Architecture(
        family="Qwen2MoeForCausalLM",
        model_type="qwen2_moe",
        layer={
            **_ATTENTION,
            **_PRE_NORMS,
            "ffn_gate_inp": "mlp.gate",
            "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
            "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
            "ffn_up_shexp": "mlp.shared_expert.up_proj",
            "ffn_down_shexp": "mlp.shared_expert.down_proj",
        },
        keys=_MOE | {"expert_shared_feed_forward_length": "shared_expert_intermediate_size"},
        may=_DENSE_SIZE,
        fixed={"norm_topk_prob": False, "decoder_sparse_step": 1, "intermediate_size": 1},
        experts=_EXPERTS,
        expert_prefix="mlp.experts",
    ),
    "qwen3moe": Architecture(
        family="Qwen3MoeForCausalLM",
        model_type="qwen3_moe",
        layer={**_ATTENTION, **_QK_NORMS, **_PRE_NORMS, "ffn_gate_inp": "mlp.gate"},
        keys=_MOE,
        may=_DENSE_SIZE,
        fixed={"norm_topk_prob": True, "decoder_sparse_step": 1, "intermediate_size": 1},
        experts=_EXPERTS,
        expert_prefix="mlp.experts",
    ),
    "gemma2": Architecture(
        family="Gemma2ForCausalLM",
        model_type="gemma2",
        layer={**_ATTENTION, **_MLP, **_SANDWICH},
        keys=_DENSE_SIZE,
        may={
            **_WINDOW,
            "attn_logit_softcapping": "attn_logit_softcapping",
            "final_logit_softcapping": "final_logit_softcapping",
        },
        norm_offset=1.0,
    ),
    "gemma3": Architecture(
        family="Gemma3ForCausalLM",
        model_type="gemma3_text",
        layer={**_ATTENTION, **_MLP, **_SANDWICH, **_QK_NORMS},
        keys=_DENSE_SIZE,
        may={
            **_WINDOW,
            "final_logit_softcapping": "final_logit_softcapping",
            "rope.freq_base_swa": "rope_local_base_freq",
        },
        norm_offset=1.0,
    ),
    "phi3": Architecture(
        family="Phi3ForCausalLM",
        model_type="phi3",
        layer={
            "attn_qkv": "self_attn.qkv_proj",
            "attn_output": "self_attn.o_proj",
            "ffn_up": "mlp.gate_up_proj",
            "ffn_down": "mlp.down_proj",
            **_PRE_NORMS,
        },
        keys=_DENSE_SIZE,
        may=_WINDOW,
    ),
    "granite": Architecture(
        family="GraniteForCausalLM",
        model_type="granite",
        layer=_LLAMA,
        keys=_DENSE_SIZE,
        may={
            "attention.scale": "attention_multiplier",
            "embedding_scale": "embedding_multiplier",
            "residual_scale": "residual_multiplier",
            "logit_scale": "logits_scaling",
        },
        permuted=True,
    ),
    "olmo2": Architecture(
        family="Olmo2ForCausalLM",
        model_type="olmo2",
        layer={**_ATTENTION, **_MLP, **_QK_NORMS, **_POST_NORMS},
        keys=_DENSE_SIZE,
    ),
}
"""By ``general.architecture``."""

MIXTRAL = Architecture(
    family="MixtralForCausalLM",
    model_type="mixtral",
    layer={**_ATTENTION, **_PRE_NORMS, "ffn_gate_inp": "block_sparse_moe.gate"},
    keys=_DENSE_SIZE | {"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"},
    experts={"ffn_gate_exps": "w1", "ffn_up_exps": "w3", "ffn_down_exps": "w2"},
    expert_prefix="block_sparse_moe.experts",
    permuted=True,
)
"""What the architecture ``llama`` is with experts."""

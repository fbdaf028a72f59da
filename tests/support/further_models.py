"""Tiny configurations of models whose plans have kernels that no plan of :mod:`four_models` has: no weights."""

from __future__ import annotations

from typing import Any

from four_models import COMMON, MODELS

_SCAN = {"state_size": 16, "conv_kernel": 4, "expand": 2, "layer_norm_epsilon": 1e-5}

FURTHER: dict[str, dict[str, Any]] = {
    "layer norm": {**COMMON, "architectures": ["CohereForCausalLM"], "layer_norm_eps": 1e-5, "logit_scale": 0.1},
    "soft caps": {
        **COMMON,
        "architectures": ["Gemma2ForCausalLM"],
        "hidden_activation": "gelu_pytorch_tanh",
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "query_pre_attn_scalar": 32,
        "sliding_window": 64,
    },
    "without gates": {**COMMON, "architectures": ["ArceeForCausalLM"], "hidden_act": "relu2"},
    "xielu": {**COMMON, "architectures": ["ApertusForCausalLM"], "hidden_act": "xielu"},
    "mamba": {
        **COMMON,
        **_SCAN,
        "architectures": ["FalconMambaForCausalLM"],
        "intermediate_size": 128,
        "time_step_rank": 4,
    },
    "mamba 2": {**COMMON, **_SCAN, "architectures": ["Mamba2ForCausalLM"], "num_heads": 4, "n_groups": 2},
    "lightning": {
        **COMMON,
        "architectures": ["MiniMaxForCausalLM"],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "layer_types": ["linear_attention", "full_attention"],
    },
    "selected": {
        **MODELS["mla"],
        "architectures": ["DeepseekV32ForCausalLM"],
        "q_lora_rank": 48,
        "index_head_dim": 32,
        "index_n_heads": 4,
        "index_topk": 64,
        "n_group": 2,
        "topk_group": 1,
    },
}

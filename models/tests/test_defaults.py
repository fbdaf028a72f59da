"""Keys that a config leaves out have the defaults of transformers' config classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from configs import DEEPSEEK, LLAMA, attends, dense_tree

from llmk.api import Checkpoint
from llmk_models import (
    deepseek_v2_facts,
    gemma2_facts,
    mamba2_facts,
    mixtral_facts,
    qwen3_moe_facts,
    qwen3_next_facts,
)


def test_missing_keys_have_the_defaults_of_transformers() -> None:
    from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

    for config_class, name in (
        (LlamaConfig, "Llama"),
        (MistralConfig, "Mistral"),
        (Qwen2Config, "Qwen2"),
        (Qwen3Config, "Qwen3"),
    ):
        silent = {key: value for key, value in LLAMA.items() if key != "architectures"} | {"num_attention_heads": 64}
        silent["hidden_size"] = 64 * 64
        config = config_class(**silent)
        ours = dense_tree(**silent, architectures=[f"{name}ForCausalLM"])
        layers = attends(ours)
        assert layers[0].kv_heads == config.num_key_value_heads
        assert layers[0].head_dim == getattr(config, "head_dim", 64)
        assert ours.norm.eps == config.rms_norm_eps
        assert layers[0].rope is not None
        assert layers[0].rope.parameters == config.rope_parameters
        assert [layer.window for layer in layers] == [getattr(config, "sliding_window", None)] * 4
        assert ours.head.tied == config.tie_word_embeddings


def test_missing_keys_of_sparse_families_have_the_defaults_of_transformers() -> None:
    from transformers import MixtralConfig, Qwen3MoeConfig

    silent = {key: value for key, value in LLAMA.items() if key != "architectures"} | {"num_attention_heads": 8}
    for config_class, module in ((MixtralConfig, mixtral_facts), (Qwen3MoeConfig, qwen3_moe_facts)):
        config: Any = config_class(**silent)
        ours = module.shape_of(Checkpoint(Path("/c"), silent))
        decoder, experts = ours.decoder, ours.experts
        assert decoder.num_kv_heads == config.num_key_value_heads
        assert decoder.norm_eps == config.rms_norm_eps
        assert decoder.rope == config.rope_parameters
        assert decoder.windows == (config.sliding_window,) * 4
        assert decoder.tied == config.tie_word_embeddings
        assert experts.num_experts == config.num_local_experts
        assert experts.top_k == config.num_experts_per_tok
        assert experts.renormalize == getattr(config, "norm_topk_prob", True)
        assert experts.intermediate_size == getattr(config, "moe_intermediate_size", config.intermediate_size)
        assert ours.sparse == (True,) * 4


def test_missing_keys_of_gemma2_have_the_defaults_of_transformers() -> None:
    from transformers import Gemma2Config

    silent = {key: value for key, value in LLAMA.items() if key != "architectures"}
    config = Gemma2Config(**silent)
    ours = gemma2_facts.shape_of(Checkpoint(Path("/c"), silent))
    decoder = ours.decoder
    assert decoder.num_kv_heads == config.num_key_value_heads
    assert decoder.head_dim == config.head_dim
    assert decoder.norm_eps == config.rms_norm_eps
    assert decoder.rope == config.rope_parameters
    assert decoder.windows == (config.sliding_window, None) * 2
    assert decoder.tied == config.tie_word_embeddings
    assert decoder.softcap == config.attn_logit_softcapping
    assert decoder.scale == config.query_pre_attn_scalar**-0.5
    assert ours.logit_softcap == config.final_logit_softcapping


def test_missing_keys_of_deepseek_v2_have_the_defaults_of_transformers() -> None:
    from transformers import DeepseekV2Config

    silent = {key: value for key, value in DEEPSEEK.items() if key != "architectures"}
    config: Any = DeepseekV2Config(**silent)
    ours = deepseek_v2_facts.shape_of(Checkpoint(Path("/c"), silent))
    decoder, latent, experts = ours.decoder, ours.decoder.latent, ours.experts
    for name in ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "qk_head_dim", "v_head_dim"):
        assert getattr(latent, name) == getattr(config, name)
    assert decoder.head_dim == config.head_dim
    assert decoder.norm_eps == config.rms_norm_eps
    assert decoder.rope == config.rope_parameters
    assert decoder.tied == config.tie_word_embeddings
    assert (latent.bias, decoder.mlp_bias) == (config.attention_bias, config.mlp_bias)
    assert experts.num_experts == config.n_routed_experts
    assert experts.intermediate_size == config.moe_intermediate_size
    assert experts.scaling == config.routed_scaling_factor
    assert ours.shared_size == config.n_shared_experts * config.moe_intermediate_size
    assert ours.sparse == (True,) * 4


def test_missing_keys_of_qwen3_next_have_the_defaults_of_transformers() -> None:
    from transformers import Qwen3NextConfig

    silent = {key: value for key, value in LLAMA.items() if key != "architectures"} | {"num_hidden_layers": 9}
    config: Any = Qwen3NextConfig(**silent)
    ours = qwen3_next_facts.shape_of(Checkpoint(Path("/c"), silent))
    decoder, experts, sizes = ours.moe.decoder, ours.moe.experts, ours.delta_net
    assert decoder.num_kv_heads == config.num_key_value_heads
    assert decoder.head_dim == config.head_dim
    assert decoder.norm_eps == config.rms_norm_eps
    assert decoder.rope == config.rope_parameters
    assert decoder.tied == config.tie_word_embeddings
    assert experts.num_experts == config.num_experts
    assert experts.top_k == config.num_experts_per_tok
    assert experts.intermediate_size == config.moe_intermediate_size
    assert experts.renormalize == config.norm_topk_prob
    assert ours.shared_size == config.shared_expert_intermediate_size
    assert ours.moe.sparse == (True,) * 9
    assert ours.attends == tuple(kind == "full_attention" for kind in config.layer_types)
    assert sizes.num_heads == config.linear_num_value_heads
    assert sizes.num_key_heads == config.linear_num_key_heads
    assert sizes.key_dim == config.linear_key_head_dim
    assert sizes.value_dim == config.linear_value_head_dim
    assert sizes.conv_kernel == config.linear_conv_kernel_dim


def test_missing_keys_of_mamba2_have_the_defaults_of_transformers() -> None:
    from transformers import Mamba2Config

    config: Any = Mamba2Config(hidden_size=4096)
    ours = mamba2_facts.shape_of(
        Checkpoint(Path("/c"), {"hidden_size": 4096, "num_hidden_layers": 2, "vocab_size": 100})
    )
    assert ours.mixer.num_heads == config.num_heads
    assert ours.mixer.head_dim == config.head_dim
    assert ours.mixer.num_groups == config.n_groups
    assert ours.mixer.state_size == config.state_size
    assert ours.mixer.conv_kernel == config.conv_kernel
    assert ours.norm_eps == config.layer_norm_epsilon
    assert ours.bias == config.use_bias
    assert ours.mixer.conv_bias == config.use_conv_bias
    assert ours.tied == config.tie_word_embeddings
    assert ours.fp32_residual == config.residual_in_fp32
    assert (ours.mixer.dt_limits, config.time_step_limit) == ((0.0, None), (0.0, float("inf")))

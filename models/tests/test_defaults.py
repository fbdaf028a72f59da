"""Keys that a config leaves out have the defaults of transformers' config classes."""

from __future__ import annotations

from typing import Any

from configs import DEEPSEEK, LLAMA, attends, config, dense_tree, experts, parts_of, shared_mlps, sparse_layers

from llmk.tree import LatentAttend, Recurrent, Residual, ScanMixer, SelfAttention
from llmk_models import (
    deepseek_v2,
    gemma2,
    mamba2,
    mixtral,
    qwen3_moe,
    qwen3_next,
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
    for config_class, family in ((MixtralConfig, mixtral), (Qwen3MoeConfig, qwen3_moe)):
        theirs: Any = config_class(**silent)
        ours = family.tree(config(**silent))
        attend, facts = attends(ours)[0], experts(ours)[0].facts
        assert attend.kv_heads == theirs.num_key_value_heads
        assert ours.norm.eps == theirs.rms_norm_eps
        assert attend.rope is not None
        assert attend.rope.parameters == theirs.rope_parameters
        assert [each.window for each in attends(ours)] == [theirs.sliding_window] * 4
        assert ours.head.tied == theirs.tie_word_embeddings
        assert facts.num_experts == theirs.num_local_experts
        assert facts.top_k == theirs.num_experts_per_tok
        assert facts.renormalize == getattr(theirs, "norm_topk_prob", True)
        assert facts.intermediate_size == getattr(theirs, "moe_intermediate_size", theirs.intermediate_size)
        assert sparse_layers(ours) == (True,) * 4


def test_missing_keys_of_gemma2_have_the_defaults_of_transformers() -> None:
    from transformers import Gemma2Config

    silent = {key: value for key, value in LLAMA.items() if key != "architectures"}
    theirs = Gemma2Config(**silent)
    ours = gemma2.tree(config(**silent))
    attend = attends(ours)[0]
    assert attend.kv_heads == theirs.num_key_value_heads
    assert attend.head_dim == theirs.head_dim
    assert ours.norm.eps == theirs.rms_norm_eps
    assert attend.rope is not None
    assert attend.rope.parameters == theirs.rope_parameters
    assert [each.window for each in attends(ours)] == [theirs.sliding_window, None] * 2
    assert ours.head.tied == theirs.tie_word_embeddings
    assert attend.softcap == theirs.attn_logit_softcapping
    assert attend.scale == theirs.query_pre_attn_scalar**-0.5
    assert ours.head.softcap == theirs.final_logit_softcapping


def test_missing_keys_of_deepseek_v2_have_the_defaults_of_transformers() -> None:
    from transformers import DeepseekV2Config

    silent = {key: value for key, value in DEEPSEEK.items() if key != "architectures"}
    theirs: Any = DeepseekV2Config(**silent)
    ours = deepseek_v2.tree(config(**silent))
    attend, facts = parts_of(ours, LatentAttend)[0], experts(ours)[0].facts
    for name in ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "qk_head_dim", "v_head_dim"):
        assert getattr(attend.shape, name) == getattr(theirs, name)
    assert attend.rope.dim == theirs.head_dim
    assert ours.norm.eps == theirs.rms_norm_eps
    assert attend.rope.parameters == theirs.rope_parameters
    assert ours.head.tied == theirs.tie_word_embeddings
    assert attend.shape.bias == theirs.attention_bias
    assert {mlp.down.bias for mlp in shared_mlps(ours)} == {theirs.mlp_bias}
    assert facts.num_experts == theirs.n_routed_experts
    assert facts.intermediate_size == theirs.moe_intermediate_size
    assert facts.scaling == theirs.routed_scaling_factor
    assert shared_mlps(ours)[0].down.size == theirs.n_shared_experts * theirs.moe_intermediate_size
    assert sparse_layers(ours) == (True,) * 4


def test_missing_keys_of_qwen3_next_have_the_defaults_of_transformers() -> None:
    from transformers import Qwen3NextConfig

    silent = {key: value for key, value in LLAMA.items() if key != "architectures"} | {"num_hidden_layers": 9}
    theirs: Any = Qwen3NextConfig(**silent)
    ours = qwen3_next.tree(config(**silent))
    attend, facts, sizes = attends(ours)[0], experts(ours)[0].facts, parts_of(ours, Recurrent)[0].sizes
    assert attend.kv_heads == theirs.num_key_value_heads
    assert attend.head_dim == theirs.head_dim
    assert ours.norm.eps == theirs.rms_norm_eps
    assert attend.rope is not None
    assert attend.rope.parameters == theirs.rope_parameters
    assert ours.head.tied == theirs.tie_word_embeddings
    assert facts.num_experts == theirs.num_experts
    assert facts.top_k == theirs.num_experts_per_tok
    assert facts.intermediate_size == theirs.moe_intermediate_size
    assert facts.renormalize == theirs.norm_topk_prob
    assert shared_mlps(ours)[0].down.size == theirs.shared_expert_intermediate_size
    assert sparse_layers(ours) == (True,) * 9
    kinds = [isinstance(layer[0].block, SelfAttention) for layer in ours.layers if isinstance(layer[0], Residual)]
    assert kinds == [kind == "full_attention" for kind in theirs.layer_types]
    assert sizes.num_heads == theirs.linear_num_value_heads
    assert sizes.num_key_heads == theirs.linear_num_key_heads
    assert sizes.key_dim == theirs.linear_key_head_dim
    assert sizes.value_dim == theirs.linear_value_head_dim
    assert sizes.conv_kernel == theirs.linear_conv_kernel_dim


def test_missing_keys_of_mamba2_have_the_defaults_of_transformers() -> None:
    from transformers import Mamba2Config

    theirs: Any = Mamba2Config(hidden_size=4096)
    ours = mamba2.tree(config(hidden_size=4096, num_hidden_layers=2, vocab_size=100))
    sizes, mixer = parts_of(ours, Recurrent)[0].sizes, parts_of(ours, ScanMixer)[0]
    assert sizes.num_heads == theirs.num_heads
    assert sizes.head_dim == theirs.head_dim
    assert sizes.num_groups == theirs.n_groups
    assert sizes.state_size == theirs.state_size
    assert sizes.conv_kernel == theirs.conv_kernel
    assert ours.norm.eps == theirs.layer_norm_epsilon
    assert mixer.into.bias == theirs.use_bias
    assert sizes.conv_bias == theirs.use_conv_bias
    assert ours.head.tied == theirs.tie_word_embeddings
    assert (ours.residual_dtype == "float32") == theirs.residual_in_fp32
    assert (sizes.dt_limits, theirs.time_step_limit) == ((0.0, None), (0.0, float("inf")))

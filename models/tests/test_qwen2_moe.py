"""Qwen2-MoE: equal to transformers for awkward configs, and what is read off its config."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from configs import LLAMA, attends, config, experts, facts, shared_mlps, sparse_layers
from equality import check_equal

from llmk.api import CheckpointError
from llmk_models import qwen2_moe

SIZES: dict[str, Any] = {"num_experts": 5, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 72}


@pytest.mark.parametrize(
    "changes",
    [
        {"num_experts_per_tok": 1, "num_key_value_heads": 1},
        {"num_experts_per_tok": 5, "norm_topk_prob": True, "num_key_value_heads": 4, "hidden_size": 72},
        {"num_experts_per_tok": 2, "decoder_sparse_step": 3, "mlp_only_layers": [1], "head_dim": 10},
        {"num_experts_per_tok": 2, "mlp_only_layers": [0, 1, 2]},
        {
            "num_experts_per_tok": 3,
            "qkv_bias": False,
            "use_sliding_window": True,
            "sliding_window": 5,
            "max_window_layers": 1,
        },
    ],
)
def test_equals_transformers(changes: dict[str, Any], make_checkpoint: Callable[..., Path]) -> None:
    check_equal(make_checkpoint("qwen2_moe", **{**SIZES, **changes}))


def test_missing_keys_have_the_defaults_of_transformers() -> None:
    from transformers import Qwen2MoeConfig

    silent = {key: value for key, value in LLAMA.items() if key != "architectures"} | {"num_attention_heads": 16}
    theirs: Any = Qwen2MoeConfig(**silent)
    ours = qwen2_moe.tree(config(**silent))
    attend, found = attends(ours)[0], experts(ours)[0].facts
    assert attend.rope is not None
    assert attend.rope.parameters == theirs.rope_parameters
    assert (attend.kv_heads, ours.norm.eps) == (theirs.num_key_value_heads, theirs.rms_norm_eps)
    assert ours.head.tied == theirs.tie_word_embeddings
    assert (found.num_experts, found.top_k) == (theirs.num_experts, theirs.num_experts_per_tok)
    assert (found.intermediate_size, found.renormalize) == (theirs.moe_intermediate_size, theirs.norm_topk_prob)
    assert shared_mlps(ours)[0].down.size == theirs.shared_expert_intermediate_size
    assert sparse_layers(ours) == (True,) * 4
    (qkv,) = (site for site in facts(qwen2_moe, **silent).linear if site.site == "qkv")
    assert qkv.bias == theirs.qkv_bias


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"use_sliding_window": True},
        {"use_sliding_window": True, "max_window_layers": 2, "sliding_window": 7},
        {"use_sliding_window": True, "layer_types": ["full_attention", *["sliding_attention"] * 3]},
    ],
)
def test_windows_are_those_of_transformers(changes: dict[str, Any]) -> None:
    from transformers import Qwen2MoeConfig

    silent = {key: value for key, value in LLAMA.items() if key != "architectures"}
    theirs: Any = Qwen2MoeConfig(**silent, **changes)
    ours = qwen2_moe.tree(config(**{**silent, "num_key_value_heads": 2, **changes}))
    window = {"full_attention": None, "sliding_attention": theirs.sliding_window}
    assert [each.window for each in attends(ours)] == [window[kind] for kind in theirs.layer_types]


def test_published_models_have_their_published_sizes() -> None:
    a2_7b = {
        "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24, "num_attention_heads": 16,
        "vocab_size": 151936, "max_position_embeddings": 8192,
    }  # fmt: skip
    a14b = a2_7b | {
        "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
        "num_key_value_heads": 4, "num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 2560,
        "shared_expert_intermediate_size": 20480,
    }  # fmt: skip
    for own, size in ((a2_7b, 14_315_784_192), (a14b, 57_408_658_944)):
        assert facts(qwen2_moe, **own).num_parameters == size


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"shared_expert_intermediate_size": 0}, "shared_expert_intermediate_size = 0"),
        ({"use_sliding_window": True, "layer_types": ["full_attention"]}, "layer_types of 1 layers"),
        ({"mlp_only_layers": ["0"]}, "mlp_only_layers"),
    ],
)
def test_an_unsupported_config_is_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(CheckpointError, match=problem):
        facts(qwen2_moe, **{**LLAMA, "num_key_value_heads": 2, **changes})

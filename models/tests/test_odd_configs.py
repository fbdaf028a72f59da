"""Each key of each family's config holds something odd, in turn: it is described, or refused by an error of llmk's."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import zoo

from llmk.api import Checkpoint, CheckpointError, ModelFacts
from llmk_models.specs import llmk_models
from llmk_testing.describing import facts_of

FAMILIES = (
    "llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe", "gemma2", "deepseek_v2", "mamba2", "qwen3_next",
    "gemma3_text", "granite", "olmo2", "olmo3", "phi3", "gpt2", "qwen2_moe", "gpt_bigcode", "gpt_oss", "deepseek_v3",
    "bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba", "lfm2", "lfm2_moe", "mamba", "nemotron_h",
    "qwen3_5_text", "qwen3_5_moe_text", "lfm3", "kimi_linear", "bailing_hybrid", "minimax", "deepseek_v32",
    "deepseek_v4", "bloom", "mpt",
)  # fmt: skip
ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 5, 0.5, 2.0, 1e308, float("inf"), float("nan"), 2**31 - 1, 2**31, 10**400, 10**9,
    100_000, "", "x", "4", [], [0], ["x"], [[]], [None], [1e9], [[1]] * 9, {}, {"x": 1}, {"x": {"y": 1}},
    {"rope_type": "yarn"}, {"rope_type": "longrope", "factor": 2.0}, {"rope_type": "yarn", "factor": 1e308},
    {"rope_type": "x"}, {"rope_type": "llama3", "rope_theta": "x"}, {"full_attention": {"rope_type": "yarn"}},
    {"__float__": "x"}, [{"__float__": "Infinity"}, 1], ["full_attention"] * 2, ["sliding_attention"] * 2,
)  # fmt: skip
OTHERS = (
    "alibi", "attention_bias", "attention_chunk_size", "attention_multiplier", "attn_logit_softcapping", "expand",
    "first_k_dense_replace", "head_dim", "index_topk", "is_encoder_decoder", "kv_lora_rank", "layer_types",
    "linear_attn_config", "mlp_only_layers", "multi_query", "n_group", "num_experts", "num_kv_shared_layers",
    "partial_rotary_factor", "position_embedding_type", "query_pre_attn_scalar", "rope_parameters", "rope_scaling",
    "rope_theta", "sliding_window", "swiglu_limit", "text_config", "time_step_limit", "tie_word_embeddings",
    "topk_group", "use_sliding_window",
)  # fmt: skip


@pytest.mark.parametrize("model_type", FAMILIES)
def test_an_odd_config_is_described_or_refused(model_type: str) -> None:
    config = {"model_type": model_type, **zoo.tiny(model_type)}
    (architecture,) = config["architectures"]
    specs = sorted(llmk_models(), key=lambda spec: architecture not in spec.architectures)
    spec = next(spec for spec in specs if architecture in spec.architectures or "*" in spec.architectures)
    refused, start = 0, time.process_time()
    for key in {**config, **dict.fromkeys(OTHERS)}:
        for odd in ODD if key != "architectures" else ():
            what = f"{model_type} with {key} = {odd!r}"
            try:
                facts = facts_of(spec, Checkpoint(Path("/c"), {**config, key: odd}))
                assert isinstance(facts, ModelFacts), what
            except CheckpointError as error:
                refused += 1
                str(error).encode()
            except Exception as error:
                pytest.fail(f"{what}: {type(error).__name__}: {error}")
    assert refused > 100
    assert time.process_time() - start < 120, "some take far too long"

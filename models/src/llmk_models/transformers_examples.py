"""Examples of models that transformers' modules serve, and of what they can't serve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from llmk_models.examples import examples

_KINDS: Sequence[tuple[Mapping[str, Any], str]] = (
    ({"is_encoder_decoder": True}, "encoder-decoder"),
    ({"use_bidirectional_attention": True}, "not causal"),
    ({"use_bidirectional_attention": "all"}, "not causal"),
    ({"alibi": True}, "ALiBi"),
    ({"position_embedding_type": "alibi"}, "ALiBi"),
    ({"num_kv_shared_layers": 2}, "last 2 layers share"),
    ({"architectures": ["OddForGeneration"]}, "not a causal language model"),
    ({"model_type": "no_such_type"}, "model_type 'no_such_type' is unknown"),
    ({"model_type": "t5"}, "no language model of model_type 't5'"),
    *(
        ({key: "odd"}, key)
        for key in (
            *("rms_norm_eps", "layer_norm_epsilon", "rope_theta", "partial_rotary_factor"),
            *("tie_word_embeddings", "attention_bias", "mlp_bias", "attn_logit_softcapping", "sliding_window"),
        )
    ),
    *(({key: {"hidden_size": 8}}, "more than text") for key in ("vision_config", "audio_config", "text_config")),
    *(({key: 4}, "indexed attention") for key in ("index_topk", "index_n_heads")),
    ({"attention_chunk_size": 8}, "chunked attention"),
    *(
        ({key: 4}, "recurrent state")
        for key in (
            *("ssm_cfg", "ssm_state_size", "state_size", "mamba_d_state", "time_step_rank", "attention_hidden_size"),
            *("linear_num_value_heads", "conv_L_cache"),
        )
    ),
    *(
        ({"layer_types": ["full_attention", kind, kind]}, said)
        for kind, said in (
            ("chunked_attention", "only to its own chunk"),
            ("window_attention", "do not slide"),
            ("reference_sliding_attention", "reference tokens"),
            ("indexed_attention", "an indexer picks"),
            ("deepseek_sparse_attention", "an indexer picks"),
            ("compressed_sparse_attention", "compressed sparse attention"),
            ("heavily_compressed_attention", "compressed keys"),
            ("minimax_m3_sparse", "picked blocks"),
            ("linear_attention", "linear attention"),
            ("conv", "convolutions"),
            ("hybrid", "recurrent state"),
            ("hybrid_sliding", "recurrent state"),
            ("mamba", "selective scan"),
            ("recurrent", "recurrent state"),
            ("unheard_of", "the unknown kind 'unheard_of'"),
        )
    ),
    *(
        ({"model_type": kind}, said)
        for said, kinds in (
            ("encoder-decoder", "bart bigbird_pegasus blenderbot blenderbot-small marian mbart musicgen"),
            ("encoder-decoder", "musicgen_melody mvp pegasus plbart prophetnet trocr whisper"),
            ("recurrent state", "bamba falcon_h1 falcon_mamba jamba lfm2 lfm2_moe lfm3 mamba mamba2 nemotron_h"),
            ("recurrent state", "recurrent_gemma rwkv xlstm zamba zamba2 inkling_text inkling2_text zaya"),
            ("an indexer picks", "axk2 deepseek_v32 glm_moe_dsa hy_v4"),
            ("linear attention", "bailing_hybrid granitemoehybrid kimi_linear minimax olmo_hybrid qwen3_5_text"),
            ("linear attention", "qwen3_5_moe_text qwen3_next qwen4_exp_text"),
            ("more than text", "emu3 fuyu gemma3 gemma3n gemma4 gemma4_unified git got_ocr2 llama4 mllama"),
            ("more than text", "moss_transcribe_diarize phi4_multimodal qwen3_5 qwen3_5_moe qwen4_exp dots3_note"),
            ("ALiBi", "bloom mpt"),
            ("compute attention themselves", "codegen gpt_neo gpt_neox_japanese gptj openai-gpt xglm xlm"),
            ("compressed sparse", "deepseek_v4"),
            ("only to its own chunk", "llama4_text"),
            ("drafts for another model", "gemma4_assistant gemma4_unified_assistant"),
            ("reads bytes", "blt"),
            ("learned biases of positions", "cpmant"),
            ("two softmaxes", "diffllama"),
            ("learned values to the mask", "doge"),
            ("share the keys and values of earlier ones", "gemma3n_text"),
            ("several times for each token", "hrm_text"),
            ("speech", "moshi"),
            ("hashed buckets", "reformer"),
            ("two streams", "xlnet"),
            ("is an encoder:", "bert bert-generation big_bird camembert data2vec-text electra ernie megatron-bert"),
            ("is an encoder:", "rembert roberta roberta-prelayernorm roc_bert roformer xlm-roberta"),
            (
                "is an encoder:",
                "xlm-roberta-xl xmod",
            ),
        )
        for kind in kinds.split()
    ),
)
"""What transformers' modules can't be served for, with the mechanism."""
_EXAMPLES = examples(
    phi3=("phi3", {"sliding_window": 24}),
    granite=("granite", {"logits_scaling": 2.0, "attention_multiplier": 0.2, "residual_multiplier": 0.5}),
    olmo2=("olmo2", {}),
    gpt2=("gpt2", {"num_key_value_heads": 4}),
    gpt_bigcode=("gpt_bigcode", {}),
    gpt_neox=("gpt_neox", {"num_key_value_heads": 4}),
    gemma2=("gemma2", {"head_dim": 16, "sliding_window": 24, "query_pre_attn_scalar": 24}),
    cohere2=("cohere2", {"sliding_window": 24}),
    mixtral=("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    gpt_oss=("gpt_oss", {"head_dim": 16, "num_local_experts": 4, "sliding_window": 24}),
)
"""Fused projections, scaled logits, norms after blocks, parallel blocks, soft caps, windows, experts, sinks."""

# What absent keys mean is compared with what the modules do, when they are loaded.
TRANSFORMERS = tuple(replace(example, filled=None) for example in _EXAMPLES)
TRANSFORMERS = (replace(TRANSFORMERS[0], refused=_KINDS), *TRANSFORMERS[1:])

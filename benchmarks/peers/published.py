"""Writes checkpoints with the sizes of published models of many families. They were typed in from what is known of
them; those of Phi-4 and Falcon3 were compared with copies of the published ``config.json``.

python benchmarks/peers/published.py --name phi-4 --out /tmp/models/phi-4             # engines make up the weights
python benchmarks/peers/published.py --name olmoe-1b-7b --out DIR --weights   # random ones that all read

Experts are chosen by weights: compare engines on sparse models with weights that they all read.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from make_model import write_tokenizer

COMMON = {"torch_dtype": "bfloat16", "use_cache": True, "hidden_act": "silu", "initializer_range": 0.02}
LLAMA = COMMON | {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
    "attention_bias": False, "mlp_bias": False, "max_position_embeddings": 32768,
}  # fmt: skip
GEMMA = COMMON | {
    "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6, "attention_bias": False, "head_dim": 256,
    "query_pre_attn_scalar": 256, "num_attention_heads": 16, "num_key_value_heads": 8, "tie_word_embeddings": True,
}  # fmt: skip
NEMOTRON_H = COMMON | {
    "architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "num_key_value_heads": 8, "head_dim": 128,
    "attention_head_dim": 128, "mamba_num_heads": 128, "n_groups": 8, "ssm_state_size": 128, "conv_kernel": 4,
    "chunk_size": 128, "expand": 2, "vocab_size": 131072, "hidden_act": "relu2", "mlp_hidden_act": "relu2",
    "mamba_hidden_act": "silu", "layer_norm_epsilon": 1e-5, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
    "attention_bias": False, "mlp_bias": False, "use_bias": False, "use_conv_bias": True, "mamba_proj_bias": False,
    "residual_in_fp32": False, "max_position_embeddings": 8192, "num_logits_to_keep": 1, "pad_token_id": 0,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": LLAMA | {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "vocab_size": 128256, "rope_theta": 500000.0,
    },
    "falcon3-10b": LLAMA | {
        "hidden_size": 3072, "intermediate_size": 23040, "num_hidden_layers": 40, "num_attention_heads": 12,
        "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 131072, "rope_theta": 1000042.0, "rms_norm_eps": 1e-6,
    },
    "mistral-nemo-12b": LLAMA | {
        "architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_size": 5120,
        "intermediate_size": 14336, "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "vocab_size": 131072, "rope_theta": 1000000.0, "sliding_window": None,
    },
    "qwen2.5-14b": COMMON | {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 5120, "intermediate_size": 13824,
        "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8, "vocab_size": 152064,
        "rope_theta": 1000000.0, "rms_norm_eps": 1e-6, "max_position_embeddings": 32768, "tie_word_embeddings": False,
        "use_sliding_window": False, "sliding_window": None,
    },
    "phi-4": LLAMA | {
        "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "hidden_size": 5120, "intermediate_size": 17920,
        "num_hidden_layers": 40, "num_attention_heads": 40, "num_key_value_heads": 10, "vocab_size": 100352,
        "rope_theta": 250000.0, "max_position_embeddings": 16384, "original_max_position_embeddings": 16384,
        "partial_rotary_factor": 1.0, "sliding_window": None, "rope_scaling": None, "pad_token_id": 100349,
    },
    "olmo-2-13b": COMMON | {
        "architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "hidden_size": 5120, "intermediate_size": 13824,
        "num_hidden_layers": 40, "num_attention_heads": 40, "num_key_value_heads": 40, "vocab_size": 100352,
        "rope_theta": 500000.0, "rms_norm_eps": 1e-6, "max_position_embeddings": 4096, "tie_word_embeddings": False,
        "attention_bias": False, "rope_scaling": None,
    },
    "granite-3.3-8b": LLAMA | {
        "architectures": ["GraniteForCausalLM"], "model_type": "granite", "hidden_size": 4096,
        "intermediate_size": 12800, "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 8,
        "vocab_size": 49159, "rope_theta": 10000000.0, "tie_word_embeddings": True, "attention_multiplier": 0.0078125,
        "embedding_multiplier": 12.0, "logits_scaling": 16.0, "residual_multiplier": 0.22,
    },
    "glm-4-9b": COMMON | {
        "architectures": ["Glm4ForCausalLM"], "model_type": "glm4", "hidden_size": 4096, "intermediate_size": 13696,
        "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128,
        "vocab_size": 151552, "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "max_position_embeddings": 32768,
        "partial_rotary_factor": 0.5, "attention_bias": True, "tie_word_embeddings": False, "pad_token_id": 151329,
    },
    "gemma-2-9b": GEMMA | {
        "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "hidden_size": 3584, "intermediate_size": 14336,
        "num_hidden_layers": 42, "vocab_size": 256000, "rope_theta": 10000.0, "max_position_embeddings": 8192,
        "sliding_window": 4096, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
    },
    "gemma-3-12b": GEMMA | {
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_size": 3840,
        "intermediate_size": 15360, "num_hidden_layers": 48, "vocab_size": 262208, "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0, "max_position_embeddings": 32768, "sliding_window": 1024,
        "sliding_window_pattern": 6, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    },
    "mixtral-12l": LLAMA | {
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 4096,
        "intermediate_size": 14336, "num_hidden_layers": 12, "num_attention_heads": 32, "num_key_value_heads": 8,
        "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000, "rope_theta": 1000000.0,
        "sliding_window": None, "output_router_logits": False, "router_aux_loss_coef": 0.02,
    },
    "olmoe-1b-7b": COMMON | {
        "architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "hidden_size": 2048, "intermediate_size": 1024,
        "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 16, "num_experts": 64,
        "num_experts_per_tok": 8, "norm_topk_prob": False, "vocab_size": 50304, "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5, "max_position_embeddings": 4096, "tie_word_embeddings": False, "attention_bias": False,
        "clip_qkv": None, "rope_scaling": None,
    },
    "granite-3.1-3b-a800m": LLAMA | {
        "architectures": ["GraniteMoeForCausalLM"], "model_type": "granitemoe", "hidden_size": 1536,
        "intermediate_size": 512, "num_hidden_layers": 32, "num_attention_heads": 24, "num_key_value_heads": 8,
        "num_local_experts": 40, "num_experts_per_tok": 8, "vocab_size": 49155, "rope_theta": 10000000.0,
        "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "attention_multiplier": 0.015625,
        "embedding_multiplier": 12.0, "logits_scaling": 6.0, "residual_multiplier": 0.22,
    },
    "gpt-oss-20b": COMMON | {
        "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880,
        "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
        "num_local_experts": 32, "num_experts_per_tok": 4, "experts_per_token": 4, "vocab_size": 201088,
        "rope_theta": 150000.0, "rms_norm_eps": 1e-5, "max_position_embeddings": 131072, "sliding_window": 128,
        "initial_context_length": 4096, "swiglu_limit": 7.0, "attention_bias": True, "tie_word_embeddings": False,
        "layer_types": ["sliding_attention", "full_attention"] * 12, "pad_token_id": 199999,
        "rope_scaling": {
            "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
            "original_max_position_embeddings": 4096,
        },
    },
    "command-r7b": COMMON | {
        "architectures": ["Cohere2ForCausalLM"], "model_type": "cohere2", "hidden_size": 4096,
        "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "vocab_size": 256000, "rope_theta": 50000.0, "max_position_embeddings": 132096,
        "sliding_window": 4096, "sliding_window_pattern": 4, "logit_scale": 0.25, "layer_norm_eps": 1e-5,
        "layer_types": ["full_attention" if layer % 4 == 3 else "sliding_attention" for layer in range(32)],
        "tie_word_embeddings": True, "attention_bias": False, "pad_token_id": 0,
    },
    "stablelm-2-12b": COMMON | {
        "architectures": ["StableLmForCausalLM"], "model_type": "stablelm", "hidden_size": 5120,
        "intermediate_size": 13824, "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 8,
        "vocab_size": 100352, "rope_theta": 10000.0, "max_position_embeddings": 4096, "partial_rotary_factor": 0.25,
        "qk_layernorm": True, "use_parallel_residual": True, "use_qkv_bias": False, "layer_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    },
    "apertus-8b": COMMON | {
        "architectures": ["ApertusForCausalLM"], "model_type": "apertus", "hidden_size": 4096,
        "intermediate_size": 21504, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "vocab_size": 131072, "rope_theta": 12000000.0, "rms_norm_eps": 1e-5, "max_position_embeddings": 65536,
        "hidden_act": "xielu", "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False,
        "qk_norm": True, "post_norm": False, "pad_token_id": 3,
    },
    "minitron-8b": COMMON | {
        "architectures": ["NemotronForCausalLM"], "model_type": "nemotron", "hidden_size": 4096,
        "intermediate_size": 16384, "num_hidden_layers": 32, "num_attention_heads": 48, "num_key_value_heads": 8,
        "head_dim": 128, "vocab_size": 256000, "rope_theta": 10000.0, "max_position_embeddings": 4096,
        "hidden_act": "relu2", "norm_eps": 1e-5, "partial_rotary_factor": 0.5, "attention_bias": False,
        "mlp_bias": False, "tie_word_embeddings": False,
    },
    "falcon-7b": COMMON | {
        "architectures": ["FalconForCausalLM"], "model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 32,
        "num_attention_heads": 71, "multi_query": True, "new_decoder_architecture": False, "parallel_attn": True,
        "bias": False, "alibi": False, "vocab_size": 65024, "layer_norm_epsilon": 1e-5, "rope_theta": 10000.0,
        "max_position_embeddings": 2048, "ffn_hidden_size": 18176, "activation": "gelu", "tie_word_embeddings": True,
    },
    "nemotron-h-8b": NEMOTRON_H | {
        "hidden_size": 4096, "intermediate_size": 21504, "num_hidden_layers": 52, "num_attention_heads": 32,
        "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-", "mamba_head_dim": 64,
    },
    "nemotron-nano-9b-v2": NEMOTRON_H | {
        "hidden_size": 4480, "intermediate_size": 15680, "num_hidden_layers": 56, "num_attention_heads": 40,
        "hybrid_override_pattern": "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-", "mamba_head_dim": 80,
    },
    "granite-4.0-h-tiny": COMMON | {
        "architectures": ["GraniteMoeHybridForCausalLM"], "model_type": "granitemoehybrid", "hidden_size": 1536,
        "intermediate_size": 512, "shared_intermediate_size": 1024, "num_hidden_layers": 40, "num_attention_heads": 12,
        "num_key_value_heads": 4, "num_local_experts": 64, "num_experts_per_tok": 6, "vocab_size": 100352,
        "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "attention_bias": False, "position_embedding_type": "nope",
        "rope_theta": 10000.0, "max_position_embeddings": 131072, "attention_multiplier": 0.0078125,
        "embedding_multiplier": 12.0, "logits_scaling": 6.0, "residual_multiplier": 0.22, "mamba_n_heads": 48,
        "mamba_d_head": 64, "mamba_d_state": 128, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_n_groups": 1,
        "mamba_chunk_size": 256, "mamba_conv_bias": True, "mamba_proj_bias": False,
        "layer_types": ["attention" if layer in (5, 15, 25, 35) else "mamba" for layer in range(40)],
    },
}  # fmt: skip
"""By name. ``mixtral-12l`` is Mixtral 8x7B with 12 of its 32 layers, which one GPU holds."""


@dataclass(frozen=True, slots=True)
class Ids:
    """The ids of a model's tokens; the last three are special."""

    vocab_size: int

    @property
    def first_special(self) -> int:
        """Id of the first special token."""
        return self.vocab_size - 3


def write_published(name: str, folder: Path, *, weights: bool, seed: int = 0) -> int:
    """Writes config, tokenizer and, where ``weights`` are asked for, those that transformers draws; their bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    ids = Ids(CONFIGS[name]["vocab_size"])
    special = {"bos_token_id": ids.first_special, "eos_token_id": ids.first_special + 2}
    (folder / "config.json").write_text(json.dumps(CONFIGS[name] | special, indent=1))
    (folder / "generation_config.json").write_text(json.dumps({**special, "do_sample": False}))
    written = _write_weights(folder, seed) if weights else 0
    write_tokenizer(folder, ids)
    return written


def _write_weights(folder: Path, seed: int) -> int:
    """transformers' own initialization in bfloat16, drawn on a GPU where there is one. ``config.json`` stays ours."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    given = (folder / "config.json").read_text()
    torch.manual_seed(seed)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.bfloat16)
    model.save_pretrained(folder, max_shard_size="4GB")
    (folder / "config.json").write_text(given)
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def main() -> None:
    """Writes one checkpoint and prints what was written, as a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", required=True, choices=sorted(CONFIGS))
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--weights", action="store_true", help="random weights that all engines read")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    start = time.perf_counter()
    written = write_published(args.name, args.out, weights=args.weights, seed=args.seed)
    seconds = round(time.perf_counter() - start, 1)
    print(json.dumps({"made": str(args.out), "name": args.name, "bytes": written, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()

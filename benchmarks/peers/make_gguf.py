"""A GGUF file of a dense Qwen3 checkpoint of ``make_model.py``, for llama.cpp and for llmk.

    python benchmarks/peers/make_gguf.py --model DIR --out m-q4_0.gguf --type q4_0

It takes a minute for Qwen3-0.6B.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors import safe_open

FILE_TYPES = {"bf16": 32, "q8_0": 7, "q4_0": 2}
"""By the type of matrices: llama.cpp's number of such a file."""
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""Modules of a checkpoint (of a layer, those after its number), and what GGUF calls them."""
END, PAD = 151645, 151643


def name_of(tensor: str) -> str:
    """``model.layers.3.mlp.up_proj.weight`` is ``blk.3.ffn_up.weight``."""
    module = tensor.removesuffix(".weight")
    layer = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", module)
    return f"blk.{layer[1]}.{NAMES[layer[2]]}.weight" if layer else f"{NAMES[module]}.weight"


def describe(writer: gguf.GGUFWriter, config: dict[str, Any], tokenizer: dict[str, Any], kind: str) -> None:
    """Writes all that is not a tensor."""
    writer.add_file_type(FILE_TYPES[kind])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    tokens = sorted(tokenizer["vocab"], key=tokenizer["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    types = gguf.TokenType
    writer.add_token_types([types.CONTROL if token.startswith("<|") else types.NORMAL for token in tokens])
    writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in tokenizer["merges"]])
    writer.add_eos_token_id(END)
    writer.add_pad_token_id(PAD)


def main() -> None:
    """Writes the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--type", default="bf16", choices=FILE_TYPES, help="of matrices; vectors are float32")
    args = parser.parse_args()
    config = json.loads((args.model / "config.json").read_text())
    if config["model_type"] != "qwen3":
        raise SystemExit(f"{args.model} is of the type {config['model_type']}; only qwen3 can be written")
    writer = gguf.GGUFWriter(args.out, "qwen3")
    tokenizer = json.loads((args.model / "tokenizer.json").read_text())["model"]
    describe(writer, config, tokenizer, args.type)
    stored = gguf.GGMLQuantizationType[args.type.upper()]
    for path in sorted(args.model.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - it is no mapping
                values = file.get_tensor(name).float().numpy()
                if values.ndim == 1:
                    writer.add_tensor(name_of(name), values)
                else:
                    packed = gguf.quants.quantize(values.astype(np.float32), stored)
                    writer.add_tensor(name_of(name), packed, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()

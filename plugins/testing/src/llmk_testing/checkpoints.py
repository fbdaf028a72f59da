"""Small generated checkpoints in the Hugging Face layout: random weights, and a tokenizer trained on a few sentences.

They let real loading code run without access to a model hub. ``transformers`` writes them, so its implementation is the
oracle.
"""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

TEXT = (
    "A small core defines hook specs, and everything that knows a chip, a model family or a dialect is a plugin.",
    "The scheduler says which requests run, how many tokens each computes, and which blocks they own.",
    'Numbers 0123456789 and punctuation: "quotes", {braces}, [brackets], naïve café, 東京, Ελλάδα, 🙂.',
)
CHAT_TEMPLATE = (
    "{%- for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_DERIVED = ("slope_rate", "query_decay", "key_decay", "diagonal_decay")
"""Ends of the names of stored buffers that follow from the config: MiniMax's decays."""
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def write_checkpoint(
    folder: Path, model_type: str, *, seed: int = 0, dtype: str = "float32", shard_bytes: int = 0, **overrides: Any
) -> Path:
    """Writes a tiny random checkpoint of a ``transformers`` model type (``"qwen3"``) and returns its folder.

    Args:
        overrides: values of the type's config, on top of tiny defaults.
        shard_bytes: size above which the weights are split over several files; 0: one file.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    vocab_size = write_tokenizer(folder)
    tiny: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": 64,
        "intermediate_size": 112,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "bos_token_id": None,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    # transformers changes nested objects, which examples may share.
    config = AutoConfig.for_model(model_type, **deepcopy(tiny | overrides))
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    with torch.no_grad():
        kept = model.state_dict().keys()
        buffers = (each for each in model.named_buffers() if each[0] in kept and not each[0].endswith(_DERIVED))
        for name, parameter in (*model.named_parameters(), *buffers):
            if not parameter.is_floating_point():  # a table of experts, by token
                parameter.copy_(torch.randint(getattr(config, "num_local_experts", 1), parameter.shape))
                continue
            if name.endswith(".A_log"):
                # The default decays of recurrent states let most of them fade within a token.
                parameter.fill_(-1.5)
            # With the default standard deviation, all logits are nearly equal; a larger one makes greedy tokens differ,
            # so errors show.
            spread = 0.3 if parameter.ndim <= 1 else 2.0 * parameter.shape[-1] ** -0.5
            parameter.add_(torch.randn_like(parameter) * spread)
    model.save_pretrained(folder, **({"max_shard_size": shard_bytes} if shard_bytes else {}))
    return folder


def write_tokenizer(folder: Path, vocab_size: int = 384) -> int:
    """Trains a byte-level BPE tokenizer with a chat template into ``folder``; returns its number of tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
    return int(tokenizer.get_vocab_size())

"""PEFT adapters with random weights, written by PEFT itself, and the model that PEFT merges each of them into."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

NEW_TOKENS = 12

Answers = list[tuple[list[int], list[float]]]
"""Greedy tokens and their log-probabilities, for each prompt."""


def write_adapter(folder: Path, base: Path, *, seed: int, **options: Any) -> Path:
    """Writes an adapter of the checkpoint ``base``; ``options`` are those of ``peft.LoraConfig``."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **options))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:  # PEFT starts with zeros, which change nothing
                parameter.copy_(torch.randn_like(parameter) * 0.7 * parameter.shape[-1] ** -0.5)
    adapted.save_pretrained(folder)
    return folder


def greedy(base: Path, adapter: Path | None, prompts: list[list[int]]) -> Answers:
    """What the model that the adapter is merged into generates, for each prompt alone."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager").eval()
    if adapter is not None:
        model = PeftModel.from_pretrained(model, adapter).merge_and_unload()
    model.generation_config.eos_token_id = None
    answers = []
    for prompt in prompts:
        out = model.generate(
            torch.tensor([prompt]), max_new_tokens=NEW_TOKENS, do_sample=False,
            output_logits=True, return_dict_in_generate=True, pad_token_id=0,
        )  # fmt: skip
        tokens = out.sequences[0, len(prompt) :].tolist()
        logprobs = torch.cat(out.logits).float().log_softmax(-1)
        answers.append((tokens, [logprobs[i, token].item() for i, token in enumerate(tokens)]))
    return answers


def change_config(folder: Path, **fields: Any) -> None:
    """Overwrites fields of an adapter's config."""
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def change_tensors(folder: Path, **changed: torch.Tensor | None) -> None:
    """Replaces tensors of an adapter by the ends of their names, with ``__`` for dots; ``None`` takes them out."""
    file = folder / "adapter_model.safetensors"
    tensors = load_file(file)
    for end, value in changed.items():
        names = [name for name in tensors if name.endswith(end.replace("__", "."))]
        for name in names or [end.replace("__", ".")]:
            tensors.pop(name, None)
            if value is not None:
                tensors[name] = value.clone()
    save_file(tensors, file)

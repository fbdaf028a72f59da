"""Checkpoints with pooled outputs, and what transformers computes of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from llmk_testing.checkpoints import write_checkpoint


def write_classifier(folder: Path, model_type: str, num_labels: int, **overrides: Any) -> Path:
    """A tiny random classifier of a type of decoders, whose labels are ``a``, ``b``, …"""
    from transformers import AutoModelForSequenceClassification

    config = {key: overrides.pop(key) for key in ("problem_type", "sentence_transformers") if key in overrides}
    decoder = write_checkpoint(folder / "decoder", model_type, **overrides)
    labels = {at: chr(ord("a") + at) for at in range(num_labels)}
    torch.manual_seed(1)
    model = AutoModelForSequenceClassification.from_pretrained(decoder, num_labels=num_labels, id2label=labels)
    with torch.no_grad():
        model.score.weight.normal_(std=0.3)
    return _saved(folder / "classifier", decoder, model, config)


def write_embedder(
    folder: Path, model_type: str, pooling: str = "lasttoken", prompts: Any = None, **overrides: Any
) -> Path:
    """A tiny random base model with sentence-transformers' files."""
    from transformers import AutoModel

    decoder = write_checkpoint(folder / "decoder", model_type, **overrides)
    made = _saved(folder / "embedder", decoder, AutoModel.from_pretrained(decoder), {})
    kinds = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    modules = [
        {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for at, (kind, path) in enumerate(kinds.items())
    ]
    (made / "modules.json").write_text(json.dumps(modules))
    (made / "1_Pooling").mkdir()
    (made / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{pooling}": True}))
    if prompts is not None:
        (made / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    return made


def _saved(folder: Path, decoder: Path, model: Any, config: dict[str, Any]) -> Path:
    model.save_pretrained(folder)
    for file in decoder.iterdir():
        if file.suffix != ".safetensors" and not (folder / file.name).exists():
            (folder / file.name).write_bytes(file.read_bytes())
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    return folder


def hidden_states(folder: Path, prompts: Sequence[list[int]]) -> list[torch.Tensor]:
    """The final hidden states, ``[tokens, hidden]``, of each prompt."""
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder)
    with torch.no_grad():
        return [model(torch.tensor([prompt])).last_hidden_state[0] for prompt in prompts]


def logits(folder: Path, prompts: Sequence[list[int]]) -> torch.Tensor:
    """The logits of a classifier's labels, ``[prompts, labels]``."""
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(folder)
    with torch.no_grad():
        return torch.stack([model(torch.tensor([prompt])).logits[0] for prompt in prompts])

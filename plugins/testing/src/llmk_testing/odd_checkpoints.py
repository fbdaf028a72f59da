"""Checkpoints with configs that lack what they should have, or have it in another form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llmk.api import Checkpoint


def odd_checkpoints() -> list[Checkpoint]:
    """Any may be asked about when an engine is planned."""
    configs: tuple[dict[str, Any], ...] = (
        *({}, {"architectures": []}, {"architectures": None}, {"architectures": "X"}, {"architectures": [None]}),
        *({"architectures": ["X"], "hidden_size": "wide"}, {"hidden_size": None}, {"text_config": None}),
        *({"text_config": {"hidden_size": 64}}, {"model_type": None}, {"model_type": 5}, {"vocab_size": "many"}),
        *({"quantization_config": None}, {"max_position_embeddings": None}, {"num_labels": -1}, {"is_decoder": 0}),
    )
    return [Checkpoint(path=Path("/nowhere"), config=config) for config in configs]

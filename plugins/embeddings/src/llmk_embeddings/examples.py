"""Examples for the conformance kit: a tiny checkpoint, and requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from llmk_embeddings.specs import HEAD
from llmk_testing.checkpoints import write_checkpoint
from llmk_testing.suites.io_processor import IOExamples

_INPUTS: tuple[Any, ...] = ("a core", ["a core", "which blocks they own"], [5, 6, 5], [[7, 8], [9]])


def _with_head(folder: Path) -> Path:
    write_checkpoint(folder, "qwen3")
    drawn = torch.randn(1, 64, generator=torch.Generator().manual_seed(0))
    save_file({"weight": drawn, "bias": torch.zeros(1)}, folder / HEAD)
    return folder


SPARSE = IOExamples(
    write=_with_head,
    bodies=[{"input": given, "return_tokens": bool(at % 2)} for at, given in enumerate(_INPUTS)],
    refused=[{}, {"input": []}, {"input": "a", "model": "b"}],
)
DENSE = IOExamples(
    write=lambda folder: write_checkpoint(folder, "qwen3"),
    bodies=[
        *({"input": given, "pooling": pooling} for given in _INPUTS for pooling in ("last", "mean")),
        {"input": "a core", "encoding_format": "float", "dimensions": 7, "normalize": False},
    ],
    refused=[{}, {"input": "a", "dimensions": 65}],
    tolerance=1e-4,
)

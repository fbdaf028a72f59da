"""Examples for the conformance kit: a tiny checkpoint, and requests."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from llmk.api import IOContext, IOOutput, IOPrompt
from llmk_embeddings.specs import HEAD
from llmk_testing.checkpoints import write_checkpoint
from llmk_testing.suites.io_processor import IOExamples

Model = Callable[[IOPrompt], IOOutput]

_INPUTS: tuple[Any, ...] = ("a core", ["a core", "which blocks they own"], [5, 6, 5], [[7, 8], [9]])


def _with_head(folder: Path) -> Path:
    write_checkpoint(folder, "qwen3")
    save_file(_head(), folder / HEAD)
    return folder


def _head() -> dict[str, Tensor]:
    drawn = torch.randn(1, 64, generator=torch.Generator().manual_seed(0))
    return {"weight": drawn, "bias": torch.full((1,), 0.5)}


def _texts(body: Mapping[str, Any]) -> list[Any]:
    """One prompt for each text, or list of tokens."""
    given = body["input"]
    one = isinstance(given, str) or isinstance(given[0], int)
    return [given] if one else list(given)


def _usage(wholes: Sequence[IOOutput]) -> dict[str, int]:
    total = sum(len(whole.token_ids) for whole in wholes)
    return {"prompt_tokens": total, "total_tokens": total}


def dense(context: IOContext, body: Mapping[str, Any], model: Model) -> Any:
    """The answer of dense embeddings, in float64, one text after the other."""
    wholes = [model(IOPrompt(prompt=text, returns="hidden")) for text in _texts(body)]
    data = []
    for index, whole in enumerate(wholes):
        assert whole.hidden is not None
        rows = whole.hidden.double()
        pooling = body.get("pooling") or context.options.get("pooling") or "last"
        vector = (rows[-1] if pooling == "last" else rows.mean(0))[: body.get("dimensions")]
        if body.get("normalize", True):
            vector = vector / vector.norm()
        values: Any = vector.tolist()
        if body.get("encoding_format") == "base64":
            values = base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()
        data.append({"object": "embedding", "index": index, "embedding": values})
    return {"object": "list", "data": data, "model": context.model_name, "usage": _usage(wholes)}


def sparse(context: IOContext, body: Mapping[str, Any], model: Model) -> Any:
    """The answer of sparse embeddings, token by token."""
    head = _head()
    wholes = [model(IOPrompt(prompt=text, returns="hidden")) for text in _texts(body)]
    data: list[dict[str, Any]] = []
    for index, whole in enumerate(wholes):
        weights: dict[int, float] = {}
        assert whole.hidden is not None
        for token, row in zip(whole.token_ids, whole.hidden, strict=True):
            weight = float(row @ head["weight"][0] + head["bias"][0])
            if weight > 0 and token not in context.tokenizer.special_token_ids:
                weights[token] = max(weight, weights.get(token, 0.0))
        data.append({"index": index, "weights": {str(token): weight for token, weight in weights.items()}})
        if body.get("return_tokens"):
            data[-1]["tokens"] = {str(token): context.tokenizer.token_text(token) for token in weights}
    return {"data": data, "usage": _usage(wholes)}


SPARSE = IOExamples(
    write=_with_head,
    bodies=[
        *({"input": given, "return_tokens": bool(at % 2)} for at, given in enumerate(_INPUTS)),
        {"input": [[*range(12)], [11, 3, 11]], "model": None},
    ],
    refused=[
        *({}, {"input": []}, {"input": "a", "model": "b"}, {"input": "", "return_tokens": 1}, {"input": [5, "a"]}),
        *({"input": [5, True]}, {"input": ["a", 5]}, {"input": [[5], []]}, {"input": "a", "other": 1}),
    ],
    expected=sparse,
)
_DENSE = IOExamples(
    write=lambda folder: write_checkpoint(folder, "qwen3"),
    bodies=[
        *({"input": given, "pooling": pooling} for given in _INPUTS for pooling in ("last", "mean")),
        {"input": "a core", "encoding_format": "float", "dimensions": 7, "normalize": False},
        {"input": ["a core", "b"], "dimensions": 1, "pooling": "mean", "user": "u"},
        {"input": "a core", "dimensions": 64, "model": None},
        {"input": ["a core", "b"], "encoding_format": "base64", "normalize": False},
    ],
    refused=[
        *({}, {"input": "a", "dimensions": 65}, {"input": "a", "dimensions": 0}, {"input": "a", "dimensions": True}),
        *({"input": "a", "pooling": "max"}, {"input": "a", "encoding_format": "hex"}, {"input": "a", "normalize": 1}),
        *({"input": "a", "model": "b"}, {"input": "a", "other": 1}, {"input": [[5], []]}, {"input": [5, True]}),
    ],
    tolerance=1e-4,
    expected=dense,
)
_DENSE_OF_MEANS = replace(
    _DENSE, options={"pooling": "mean"}, bodies=[{"input": ["a core", "b"]}, {"input": "a core", "pooling": "last"}]
)
DENSE = (_DENSE, _DENSE_OF_MEANS)

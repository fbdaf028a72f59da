"""The processors pass the suite that every one is held to."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from llmk.api import IOContext
from llmk.testing.checkpoints import write_checkpoint
from llmk.testing.io_processors import check_io_processor, io_context
from llmk_embeddings.dense import Dense
from llmk_embeddings.sparse import Sparse

INPUTS: list[Any] = ["a core", ["a core", "which blocks they own"], [5, 6, 5], [[7, 8], [9]]]


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> IOContext:
    folder = write_checkpoint(tmp_path_factory.mktemp("tiny"), "qwen3")
    save_file({"weight": torch.randn(1, 64), "bias": torch.zeros(1)}, folder / "sparse_linear.safetensors")
    return io_context(folder)


def test_sparse(context: IOContext) -> None:
    bodies = [{"input": given, "return_tokens": bool(at % 2)} for at, given in enumerate(INPUTS)]
    check_io_processor(Sparse, context, bodies, refused=[{}, {"input": []}, {"input": "a", "model": "b"}])


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_dense(context: IOContext, pooling: str) -> None:
    bodies = [{"input": given, "pooling": pooling} for given in INPUTS]
    bodies.append({"input": "a core", "encoding_format": "float", "dimensions": 7, "normalize": False})
    check_io_processor(Dense, context, bodies, refused=[{}, {"input": "a", "dimensions": 65}], tolerance=1e-4)

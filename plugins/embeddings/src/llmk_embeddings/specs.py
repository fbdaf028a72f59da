"""The plugin module of ``llmk-embeddings``: its IO processors and their options."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel, Field

from llmk.api import OK, Checkpoint, IOProcessorSpec, Verdict, hookimpl, no

HEAD = "sparse_linear.safetensors"
"""The file next to a checkpoint with the head of sparse weights: ``weight`` ``[1, hidden_size]``, ``bias`` ``[1]``."""


def has_head(checkpoint: Checkpoint) -> Verdict:
    """Checkpoints with the head's file next to them."""
    if checkpoint.file(HEAD).is_there:
        return OK
    hint = "put the head that was trained with the model there, as safetensors"
    return no("sparse_head", wanted=HEAD, found=f"none in {checkpoint.path}", hint=hint)


@hookimpl
def llmk_io_processors() -> Iterable[IOProcessorSpec]:
    """IO processors."""
    return [
        IOProcessorSpec(
            id="embeddings.dense",
            name="embeddings",
            implementation="llmk_embeddings.dense:Dense",
            examples="llmk_embeddings.examples:DENSE",
            summary="One vector per text, in the shape of OpenAI's embeddings.",
        ),
        IOProcessorSpec(
            id="embeddings.sparse",
            name="sparse",
            implementation="llmk_embeddings.sparse:Sparse",
            examples="llmk_embeddings.examples:SPARSE",
            supports=has_head,
            summary="A weight for each token of a text, as BGE-M3 makes them.",
        ),
    ]


class Options(BaseModel, extra="forbid"):
    """``[plugin.embeddings]``."""

    pooling: Literal["last", "mean"] = Field(
        "last", description="How a vector is pooled: the last token's hidden state, or the mean of all."
    )


@hookimpl
def llmk_config_schema() -> type[BaseModel]:
    """The options' schema."""
    return Options

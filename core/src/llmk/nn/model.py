"""What the engine asks of a model."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from llmk.api import CacheSpec, Checkpoint
from llmk.nn.build import Build
from llmk.nn.context import StepContext
from llmk.nn.layer import Layer


class Model(Protocol):
    """A decoder, or a stage of one. Its parameters carry the checkpoint's names; where several are packed, the layer
    knows the parts.

    Attributes:
        weights: the layers that own parameters, in the order in which they compute; those of other stages among them
            (:meth:`~llmk.nn.Build.stage`).
        ignored_weights: regular expressions, matched in full, of checkpoint tensors that the model has no use for.
    """

    weights: Sequence[Layer]
    ignored_weights: tuple[str, ...]

    def __init__(self, build: Build, checkpoint: Checkpoint) -> None: ...

    @abstractmethod
    def forward(self, token_ids: Tensor, step: StepContext) -> Tensor:
        """Final, normed hidden states ``[tokens, hidden]`` of ``token_ids`` (int64 ``[tokens]``); fills the caches.

        A stage but the first begins with what it receives from the one before, and one but the last hands on what it
        made (:class:`~llmk.nn.parallel.Parallel`); what the latter returns is not looked at.
        """
        ...

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """Logits ``[rows, vocab]`` of ``hidden`` ``[rows, hidden]``, of any floating dtype."""
        ...

    @abstractmethod
    def cache_specs(self) -> list[tuple[int, str, CacheSpec]]:
        """Layer index, attention site and cache spec of every layer of the stage that keeps something between steps."""
        ...


@runtime_checkable
class SelfLoading(Protocol):
    """A model that reads its own checkpoint, because its modules come with a loader of their own."""

    def load(self, checkpoint: Checkpoint, dtype: torch.dtype, dummy_seed: int | None) -> None:
        """Fills all parameters in ``dtype``: from the checkpoint's files, or at random where ``dummy_seed`` is given.

        Raises:
            CheckpointError: where files and modules disagree.
        """
        ...

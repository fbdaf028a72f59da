"""The interface between the engine and a model."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from llmk.api import CacheSpec, Checkpoint
from llmk.nn.build import Build
from llmk.nn.context import StepContext
from llmk.nn.layer import Layer


class Model(Protocol):
    """A decoder, or one pipeline stage of it. Its parameters have the checkpoint's names; a packed layer knows the
    names of its parts.

    Attributes:
        weights: the layers that own parameters, in the order in which they compute, including those of other stages
            (:meth:`~llmk.nn.Build.stage`).
        ignored_weights: regular expressions, matched in full, for checkpoint tensors that the model does not use.
    """

    weights: Sequence[Layer]
    ignored_weights: tuple[str, ...]

    def __init__(self, build: Build, checkpoint: Checkpoint) -> None: ...

    @abstractmethod
    def forward(self, token_ids: Tensor, step: StepContext) -> Tensor:
        """Final, normed hidden states ``[rows, hidden]`` of ``token_ids`` (int64 ``[tokens]``), at
        ``step.output_rows``, or of all tokens; fills the caches. ``step.given`` is only there where the model's facts
        have ``takes_embeddings``.

        Every stage but the first receives its input from the previous stage, and every stage but the last sends its
        output to the next (:class:`~llmk.nn.parallel.Parallel`). The return value of the latter is ignored.
        """
        ...

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """Logits ``[rows, vocab]`` of ``hidden`` ``[rows, hidden]``, of any floating dtype."""
        ...

    @abstractmethod
    def cache_specs(self) -> list[tuple[int, str, CacheSpec]]:
        """Layer index, attention site and cache spec of every layer of the stage that has a cache."""
        ...


class HeadedModel(Model, Protocol):
    """A model with heads that predict further tokens, where they are wanted.

    Attributes:
        ahead: the heads, each with a cache among :meth:`cache_specs`. From final hidden states ``[tokens, hidden]``, by
            the model or the head before, and the ids of the tokens that follow each, int64 ``[tokens]``, they compute
            those for :meth:`logits`.
    """

    ahead: Sequence[Callable[[Tensor, Tensor, StepContext], Tensor]]


@runtime_checkable
class SelfLoading(Protocol):
    """A model that reads its own checkpoint, because its modules have their own loader."""

    def load(self, checkpoint: Checkpoint, dtype: torch.dtype, dummy_seed: int | None) -> None:
        """Fills all parameters in ``dtype``: from the checkpoint's files, or at random if ``dummy_seed`` is given.

        Raises:
            CheckpointError: files and modules don't match.
        """
        ...

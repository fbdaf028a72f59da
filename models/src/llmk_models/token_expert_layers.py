"""The modules of :mod:`llmk_models.token_experts`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from llmk.api import CheckpointError, StoredTensor
from llmk.nn import Layer, Parameter
from llmk.nn.layer import stored_dtype

if TYPE_CHECKING:
    from llmk.nn import Builder
    from llmk_models import token_experts


class ExpertTable(Layer):
    """The experts of each token id."""

    def __init__(self, builder: Builder, spec: token_experts.ExpertTable, num_experts: int) -> None:
        self._build, self._spec, self._num_experts = builder.build, spec, num_experts
        super().__init__(builder.build, [self._parameter(torch.int64)])

    def discover(self, stored: Mapping[str, Sequence[StoredTensor]]) -> None:
        """Loads whole numbers of the size in which they are stored."""
        found = [each for each in stored.get(self._spec.at.rpartition(".")[0], ()) if each.name == self._spec.at]
        if any(stored_dtype(each) == torch.int32 for each in found):
            self.parameters = (self._parameter(torch.int32),)

    def _parameter(self, dtype: torch.dtype) -> Parameter:
        spec = self._spec
        return Parameter(self._build, [spec.at], [spec.vocab_size], [spec.top_k], dtype=dtype)

    def finish(self) -> None:
        """Raises CheckpointError for experts that are not there."""
        (parameter,) = self.parameters
        self._table = parameter.take().long()
        least, most = int(self._table.min()), int(self._table.max())
        if least < 0 or most >= self._num_experts:
            raise CheckpointError(
                f"{parameter.names[0]} names the experts {least} to {most}, but there are {self._num_experts}",
                hint="download the checkpoint again, or compare its config.json with what the model's authors publish",
            )

    def __call__(self, token_ids: Tensor) -> Tensor:
        """int64 ``[tokens, top_k]``."""
        return self._table[token_ids]


class TokenExperts(Layer):
    """Experts by token ids."""

    def __init__(self, builder: Builder, spec: token_experts.TokenExperts) -> None:
        facts, build = spec.experts.facts, builder.build
        self._router, self._experts = builder.linear(spec.router), builder.experts(spec.experts)
        self._shared, self._all_reduce = builder.block(spec.shared), build.parallel.all_reduce
        self._table = ExpertTable(builder, spec.table, facts.num_experts) if spec.table else None
        self._top_k = facts.top_k
        biases = [spec.bias] if spec.bias else []
        own = [Parameter(build, [bias.at], [bias.size], dtype=torch.float32) for bias in biases]
        super().__init__(build, own)

    def finish(self) -> None:
        self._bias = self.parameters[0].take() if self.parameters else torch.zeros(())

    def __call__(self, x: Tensor, token_ids: Tensor) -> Tensor:
        """Maps ``[tokens, hidden]`` to the same."""
        # Not torch's softplus, which computes the last elements of a tensor by other code than the rest.
        logits = self._router(x).float()
        scores = (torch.log1p(torch.exp(-logits.abs())) + logits.clamp(min=0.0)).sqrt()
        if self._table is not None:
            chosen = self._table(token_ids)
        else:
            chosen = (scores + self._bias).topk(self._top_k, dim=-1).indices
        weights = scores.gather(1, chosen)
        weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
        # The softmax of their logarithms are the weights; an expert that is named twice has both.
        shares = torch.zeros_like(scores).scatter_add(1, chosen, weights)
        total: Tensor = self._experts(x, shares.log()) + self._shared(x, None)
        return self._all_reduce(total)

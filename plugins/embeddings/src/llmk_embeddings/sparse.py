"""Sparse embeddings: a weight for each token of a text.

The weight of a token is relu(w . h + b) of its final hidden state h, by a head that was trained with the model. For
equal tokens, the largest weight is used; special tokens and weights of 0 are omitted. Weights are returned unscaled:
Chen et al., "M3-Embedding" (2024), section 3.2, lexical retrieval, and the ``lexical_weights`` of BGE-M3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from llmk.api import CheckpointError, IOContext, IOOutput, IOPrompt, IOTokenizer
from llmk_embeddings.fields import check_model, check_names, inputs, one_of, usage
from llmk_embeddings.specs import HEAD

_LONGEST_HEAD = 1 << 20
"""Most bytes of the head's file: several times the size for the widest models."""


class Sparse:
    """``{"input": str | list[str], "return_tokens": bool}`` to ``{"data": [{"index", "weights": {id: weight}}]}``."""

    def __init__(self, context: IOContext) -> None:
        self._context = context
        self._weight, self._bias = _read_head(context)

    def open(self, body: Mapping[str, Any]) -> SparseRequest:
        """Creates the request for a body."""
        check_names(body, ("input", "model", "return_tokens"))
        check_model(body, self._context.model_name)
        named = one_of(body, "return_tokens", (False, True))
        prompts = [IOPrompt(prompt=text, returns="hidden", param=param) for param, text in inputs(body)]
        return SparseRequest(prompts, self._weights, self._context.tokenizer, named)

    def _weights(self, hidden: Tensor) -> Tensor:
        """Float32 ``[tokens]`` of float32 ``[tokens, hidden_size]``."""
        return torch.relu(hidden @ self._weight + self._bias)


class SparseRequest:
    """One request: the largest weight of each token of each text so far."""

    def __init__(
        self, prompts: list[IOPrompt], weights: Callable[[Tensor], Tensor], tokenizer: IOTokenizer, named: bool
    ) -> None:
        self.prompts = prompts
        self._weights = weights
        self._tokenizer = tokenizer
        self._named = named
        self._largest: list[dict[int, float]] = [{} for _ in prompts]
        self._num_tokens = 0

    def take(self, output: IOOutput) -> None:
        """Takes the next output of one of the texts."""
        assert output.hidden is not None
        largest, special = self._largest[output.prompt], self._tokenizer.special_token_ids
        for token, weight in zip(output.token_ids, self._weights(output.hidden).tolist(), strict=True):
            if weight > largest.get(token, 0.0) and token not in special:
                largest[token] = weight
        self._num_tokens += len(output.token_ids)

    def answer(self) -> dict[str, Any]:
        """The weights by token id, with the tokens' texts if requested."""
        data: list[dict[str, Any]] = []
        for index, own in enumerate(self._largest):
            data.append({"index": index, "weights": {str(token): weight for token, weight in own.items()}})
            if self._named:
                data[-1]["tokens"] = {str(token): self._tokenizer.token_text(token) for token in own}
        return {"data": data, "usage": usage(self._num_tokens)}


def _read_head(context: IOContext) -> tuple[Tensor, Tensor]:
    """Float32 ``[hidden_size]`` and ``[]``. Raises CheckpointError if the file is damaged or belongs to another
    model."""
    file, width = context.checkpoint.file(HEAD), context.facts.hidden_size
    try:
        tensors = load(file.read(_LONGEST_HEAD))
    except SafetensorError as error:
        raise CheckpointError(f"{file} can't be read: {error}", hint="copy the file again") from error
    found = {name: list(tensor.shape) for name, tensor in tensors.items()}
    if found != {"weight": [1, width], "bias": [1]}:
        what = f"{file} has {found}, not 'weight' [1, {width}] and 'bias' [1]"
        raise CheckpointError(what, hint="put the head that was trained with the model there")
    return tensors["weight"][0].float(), tensors["bias"][0].float()

"""Dense embeddings: a vector for each text, in the shape of OpenAI's ``/v1/embeddings``."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.nn.functional import normalize

from llmk.api import IOContext, IOOutput, IOPrompt, RequestError
from llmk_embeddings.fields import check_model, check_names, inputs, one_of, usage

FIELDS = ("input", "model", "encoding_format", "dimensions", "pooling", "normalize", "user")


class Dense:
    """Pools final hidden states: that of the last token, or their mean. Vectors have length 1 unless ``normalize`` is
    false; ``dimensions`` truncates vectors, for models that were trained for that."""

    def __init__(self, context: IOContext) -> None:
        self._context = context
        default = context.options.get("pooling", "last")
        self._poolings = (default, *({"last", "mean"} - {default}))

    def open(self, body: Mapping[str, Any]) -> DenseRequest:
        """Creates the request for a body."""
        check_names(body, FIELDS)
        check_model(body, self._context.model_name)
        width = self._context.facts.hidden_size
        dimensions = body.get("dimensions", width)
        if type(dimensions) is not int or not 1 <= dimensions <= width:
            raise RequestError(f"dimensions must be a whole number from 1 to {width}", param="dimensions")
        returns: Any = "last_hidden" if one_of(body, "pooling", self._poolings) == "last" else "hidden"
        return DenseRequest(
            [IOPrompt(prompt=text, returns=returns, param=param) for param, text in inputs(body)],
            self._context.model_name,
            dimensions,
            in_base64=one_of(body, "encoding_format", ("float", "base64")) == "base64",
            normalized=one_of(body, "normalize", (True, False)),
        )


class DenseRequest:
    """One request: the running sum of each text's hidden states, their number, and the last position."""

    def __init__(
        self, prompts: list[IOPrompt], model: str, dimensions: int, *, in_base64: bool, normalized: bool
    ) -> None:
        self.prompts = prompts
        self._model = model
        self._dimensions = dimensions
        self._in_base64 = in_base64
        self._normalized = normalized
        self._sums: dict[int, Tensor] = {}
        self._counts = [0] * len(prompts)
        self._lengths = [0] * len(prompts)

    def take(self, output: IOOutput) -> None:
        """Takes the next output of one of the texts."""
        assert output.hidden is not None
        at, total = output.prompt, output.hidden.sum(0)
        self._sums[at] = self._sums[at] + total if at in self._sums else total
        self._counts[at] += len(output.token_ids)
        self._lengths[at] = output.start + len(output.token_ids)

    def answer(self) -> dict[str, Any]:
        """OpenAI's list of embeddings."""
        data = [
            {"object": "embedding", "index": at, "embedding": self._encoded(self._sums[at] / count)}
            for at, count in enumerate(self._counts)
        ]
        return {"object": "list", "data": data, "model": self._model, "usage": usage(sum(self._lengths))}

    def _encoded(self, vector: Tensor) -> Any:
        vector = vector[: self._dimensions]
        if self._normalized:
            vector = normalize(vector, dim=0)
        if self._in_base64:
            return base64.b64encode(vector.numpy().astype("<f4").tobytes()).decode()
        return vector.tolist()

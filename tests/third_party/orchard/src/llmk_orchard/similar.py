"""``{"query": "...", "documents": [...]}``: the documents by how alike their mean hidden states are to the query's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from llmk.api import IOContext, IOOutput, IOPrompt, RequestError

FIELDS = ("query", "documents", "top")


class Similar:
    """One instance serves all requests. ``[plugin.orchard] most`` bounds the documents of a request."""

    def __init__(self, context: IOContext) -> None:
        self._most = int(context.options.get("most", 64))

    def open(self, body: Mapping[str, Any]) -> SimilarRequest:
        """Creates the request for a body."""
        if unknown := sorted(set(body) - set(FIELDS)):
            raise RequestError(f"unknown field {unknown[0]!r}; there are {', '.join(FIELDS)}", param=unknown[0])
        query, documents = body.get("query"), body.get("documents")
        if not isinstance(query, str) or not query:
            raise RequestError("query must be a text", param="query")
        if not isinstance(documents, list) or not 1 <= len(documents) <= self._most:
            raise RequestError(f"documents must be a list of 1 to {self._most} texts", param="documents")
        for number, document in enumerate(documents):
            if not isinstance(document, str) or not document:
                raise RequestError(f"documents[{number}] must be a text", param=f"documents[{number}]")
        top = body.get("top", len(documents))
        if type(top) is not int or top < 1:
            raise RequestError("top must be a whole number from 1", param="top")
        return SimilarRequest([query, *documents], min(top, len(documents)))


class SimilarRequest:
    """The sums of hidden states of the query, which is the first text, and of the documents."""

    def __init__(self, texts: list[str], top: int) -> None:
        self.prompts = [
            IOPrompt(prompt=text, returns="hidden", param=f"documents[{number - 1}]" if number else "query")
            for number, text in enumerate(texts)
        ]
        self._top = top
        self._sums: list[Tensor | None] = [None] * len(texts)
        self._counts = [0] * len(texts)

    def take(self, output: IOOutput) -> None:
        """Adds the next hidden states of one of the texts."""
        assert output.hidden is not None
        total, known = output.hidden.sum(0), self._sums[output.prompt]
        self._sums[output.prompt] = total if known is None else known + total
        self._counts[output.prompt] += len(output.hidden)

    def answer(self) -> dict[str, Any]:
        """The best first; among equals, in the order of the request."""
        means = [self._mean(number) for number in range(len(self._sums))]
        scores = [float(torch.cosine_similarity(means[0], mean, dim=0)) for mean in means[1:]]
        ranked = sorted(range(len(scores)), key=lambda number: -scores[number])[: self._top]
        results = [{"index": number, "score": scores[number]} for number in ranked]
        return {"results": results, "tokens": sum(self._counts)}

    def _mean(self, number: int) -> Tensor:
        total = self._sums[number]
        assert total is not None
        return total.double() / self._counts[number]

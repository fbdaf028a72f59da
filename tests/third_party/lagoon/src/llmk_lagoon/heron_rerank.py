"""Documents by their relevance to a query, by late interaction (ColBERT): ``{"query": "…", "documents": ["…", "…"]}``.

Query and documents are computed by themselves. Then each token of the query looks for the token of a document that is
most like it, by the cosine of their hidden states; a document's relevance is the mean of these over the query (Khattab
and Zaharia, 2020). Special tokens do not count, nor does punctuation in documents, unless there is nothing else.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from llmk.api import ConfigError, IOContext, IOOutput, IOPrompt, RequestError

FIELDS = ("query", "documents", "top_n", "min_score", "return_documents")
DIGITS = 6
"""Relevance is rounded, so that documents that differ by less are in the order of the request."""


class Rerank:
    """Follows ``llmk.api.IOProcessor``: one instance serves all requests. Options in ``[plugin.heron]``:
    ``max_documents`` of a request, and ``skip_punctuation``."""

    def __init__(self, context: IOContext) -> None:
        self._tokenizer = context.tokenizer
        self._model_name = context.model_name
        self._max_documents = context.options.get("max_documents", 1000)
        self._skip_punctuation = context.options.get("skip_punctuation", True)
        self._is_punctuation: dict[int, bool] = {}
        if not _is_whole(self._max_documents) or self._max_documents < 1:
            raise ConfigError("plugin.heron.max_documents must be a whole number from 1 on")
        if not isinstance(self._skip_punctuation, bool):
            raise ConfigError("plugin.heron.skip_punctuation must be true or false")

    def open(self, body: Mapping[str, Any]) -> RerankRequest:
        """Creates the request for a body. ``null`` means that an optional field is not set."""
        if unknown := sorted(body.keys() - set(FIELDS)):
            raise RequestError(f"unknown field {unknown[0]!r}; there are {', '.join(FIELDS)}", param=unknown[0])
        query, documents = body.get("query"), body.get("documents")
        top_n, min_score = body.get("top_n"), body.get("min_score")
        return_documents = body.get("return_documents")
        if not isinstance(query, str) or not query:
            raise RequestError("query must be a text that is not empty", param="query")
        if not isinstance(documents, list) or not 1 <= len(documents) <= self._max_documents:
            raise RequestError(f"documents must be a list of 1 to {self._max_documents:.0f} texts", param="documents")
        for at, document in enumerate(documents):
            if not isinstance(document, str) or not document:
                raise RequestError("a document must be a text that is not empty", param=f"documents[{at}]")
        if top_n is not None and (not _is_whole(top_n) or top_n < 1):
            raise RequestError("top_n must be a whole number from 1 on", param="top_n")
        if min_score is not None and (not _is_number(min_score) or not -1 <= min_score <= 1):
            raise RequestError("min_score must be a number from -1 to 1", param="min_score")
        if not isinstance(return_documents, bool | None):
            raise RequestError("return_documents must be true or false", param="return_documents")
        most = len(documents) if top_n is None else int(top_n)
        return RerankRequest(self, query, documents, most, min_score, return_documents is True)

    def counts(self, token_id: int, is_query: bool) -> bool:
        """Whether a token counts."""
        if token_id in self._tokenizer.special_token_ids:
            return False
        return is_query or not self._skip_punctuation or not self._punctuation(token_id)

    def named(self, results: list[dict[str, Any]], num_tokens: int) -> dict[str, Any]:
        """The response."""
        return {"model": self._model_name, "results": results, "usage": {"total_tokens": num_tokens}}

    def _punctuation(self, token_id: int) -> bool:
        """Whether a token is punctuation and blank space alone; known for each token of the vocabulary once."""
        if (known := self._is_punctuation.get(token_id)) is None:
            text = self._tokenizer.token_text(token_id).strip()
            known = bool(text) and all(unicodedata.category(character).startswith("P") for character in text)
            self._is_punctuation[token_id] = known
        return known


class RerankRequest:
    """Follows ``llmk.api.IORequest``: the state of one request. The first prompt is the query."""

    def __init__(
        self,
        processor: Rerank,
        query: str,
        documents: list[str],
        most: int,
        min_score: float | None,
        return_documents: bool,
    ) -> None:
        self.prompts = [
            IOPrompt(prompt=query, returns="hidden", param="query"),
            *(
                IOPrompt(prompt=document, returns="hidden", param=f"documents[{at}]")
                for at, document in enumerate(documents)
            ),
        ]
        self._processor = processor
        self._documents = documents
        self._most = most
        self._min_score = min_score
        self._return_documents = return_documents
        self._vectors: list[list[Tensor]] = [[] for _ in self.prompts]
        self._counted: list[list[bool]] = [[] for _ in self.prompts]

    def take(self, output: IOOutput) -> None:
        """Takes the hidden states of the next tokens of a text, as directions."""
        assert output.hidden is not None
        hidden = output.hidden.double()  # whose squares are finite where those of float32 are not
        length = torch.linalg.vector_norm(hidden, dim=1, keepdim=True)
        self._vectors[output.prompt].append(hidden / length.where(length > 0, 1.0))
        counts = self._processor.counts
        self._counted[output.prompt] += [counts(id, output.prompt == 0) for id in output.token_ids]

    def answer(self) -> dict[str, Any]:
        """The documents that are relevant enough, the most relevant first."""
        query, asked = self._text(0)
        scores = [self._relevance(query, asked, *self._text(at)) for at in range(1, len(self.prompts))]
        ranked = sorted(range(len(scores)), key=lambda at: (-scores[at], at))
        results: list[dict[str, Any]] = []
        for index in ranked[: self._most]:
            if self._min_score is not None and scores[index] < self._min_score:
                break
            document = {"document": self._documents[index]} if self._return_documents else {}
            results.append({"index": index, "relevance_score": scores[index], **document})
        return self._processor.named(results, sum(len(counted) for counted in self._counted))

    def _text(self, prompt: int) -> tuple[Tensor, Tensor]:
        """The directions of a text's tokens, and which of them count: all, if none would."""
        counted = torch.tensor(self._counted[prompt])
        return torch.cat(self._vectors[prompt]), counted if counted.any() else torch.ones_like(counted)

    @staticmethod
    def _relevance(query: Tensor, asked: Tensor, document: Tensor, counted: Tensor) -> float:
        """The mean over the query's tokens of the cosine with the most similar token of the document."""
        similarity = (query @ document.T).masked_fill(~counted, -torch.inf)
        best = similarity.max(dim=1).values
        return round(float((best * asked).sum() / asked.sum()), DIGITS)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    """Whether it is a whole number, which JSON may write with a fraction of 0."""
    return _is_number(value) and value == value // 1

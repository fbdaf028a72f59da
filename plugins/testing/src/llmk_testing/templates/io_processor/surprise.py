"""``{"texts": [...]}`` to ``{"nats_per_token": [...]}``: how little the model expects each text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmk.api import IOContext, IOOutput, IOPrompt, RequestError

LEAST = -1e4
"""What a token counts that the model rules out: JSON has no infinity."""


class Surprise:
    """Follows ``llmk.api.IOProcessor``: one instance serves all requests."""

    def __init__(self, context: IOContext) -> None:
        """``context`` has checkpoint, tokenizer, and the options in ``[plugin.acme]``."""

    def open(self, body: Mapping[str, Any]) -> SurpriseRequest:
        """Creates the request for a body."""
        texts = body.get("texts")
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
            raise RequestError("texts must be a list of at least one text", param="texts")
        if unknown := sorted(set(body) - {"texts"}):
            raise RequestError(f"unknown field {unknown[0]!r}; there is texts", param=unknown[0])
        return SurpriseRequest(texts)


class SurpriseRequest:
    """Follows ``llmk.api.IORequest``: the state of one request, which is dropped with it."""

    def __init__(self, texts: list[str]) -> None:
        self.prompts = [
            IOPrompt(prompt=text, returns="logprobs", param=f"texts[{index}]") for index, text in enumerate(texts)
        ]
        self._known: list[list[float]] = [[] for _ in texts]

    def take(self, output: IOOutput) -> None:
        """Takes the next output of one of the texts; the first token has no log-probability."""
        self._known[output.prompt] += [max(logprob, LEAST) for logprob in output.logprobs if logprob is not None]

    def answer(self) -> dict[str, Any]:
        """The mean of each text; ``null`` for one of a single token."""
        return {"nats_per_token": [-sum(known) / len(known) if known else None for known in self._known]}

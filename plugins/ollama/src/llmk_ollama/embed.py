"""``/api/embed`` and ``/api/embeddings``."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from llmk.api import AnswerHead, AnswerRenderer, ServedModelInfo, TranslatedRequest
from llmk.api.http.bodies import parse
from llmk_ollama.schema import EmbeddingsRequest, EmbedRequest
from llmk_ollama.translation import Route, Wire, loaded, options_of


class Embed(Route):
    """Embeddings of one text or several."""

    def translate(self, body: Any, headers: Mapping[str, str]) -> TranslatedRequest:
        """The texts to embed. Raises :class:`~llmk.api.RequestError`."""
        request = parse(EmbedRequest, body)
        if not request.input:
            return loaded(request, options_of(body))
        dimensions = {} if request.dimensions is None else {"dimensions": request.dimensions}
        made = {"model": request.model, "input": request.input, "encoding_format": "float", **dimensions}
        return TranslatedRequest("embed", made, options=options_of(body))

    def open(self, head: AnswerHead, options: Mapping[str, Any]) -> AnswerRenderer:
        """Not used: nothing is generated."""
        raise NotImplementedError

    def result(self, result: Mapping[str, Any], options: Mapping[str, Any], model: ServedModelInfo) -> Any:
        """The vectors, in the order of the texts."""
        return {
            "model": options["model"],
            "embeddings": _vectors(result),
            "total_duration": time.monotonic_ns() - options["arrived"],
            "load_duration": 0,
            "prompt_eval_count": result.get("usage", {}).get("prompt_tokens", 0),
        }


class Embeddings(Embed):
    """The embedding of one text, in the older format."""

    def translate(self, body: Any, headers: Mapping[str, str]) -> TranslatedRequest:
        """The text to embed. Raises :class:`~llmk.api.RequestError`."""
        request = parse(EmbeddingsRequest, body)
        if not request.prompt:
            return loaded(request, options_of(body))
        made = {"model": request.model, "input": request.prompt, "encoding_format": "float"}
        return TranslatedRequest("embed", made, options=options_of(body))

    def result(self, result: Mapping[str, Any], options: Mapping[str, Any], model: ServedModelInfo) -> Any:
        """The vector; empty for an empty text."""
        return {"embedding": next(iter(_vectors(result)), [])}


def _vectors(result: Mapping[str, Any]) -> list[Wire]:
    entries = sorted(result.get("data", ()), key=lambda entry: entry["index"])
    return [entry["embedding"] for entry in entries]

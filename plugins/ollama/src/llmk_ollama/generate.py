"""``/api/generate``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmk.api import AnswerHead, RequestError, ServedModelInfo, TranslatedRequest
from llmk.api.http.bodies import parse
from llmk_ollama.renderer import LineRenderer
from llmk_ollama.schema import GenerateRequest
from llmk_ollama.translation import Route, generated, loaded, options_of, thinking, timestamp


class Generate(Route):
    """A response to a prompt: by the chat template, or as it is (``raw``). Without a prompt, the model is loaded, which
    it always is."""

    def translate(self, body: Any, headers: Mapping[str, str]) -> TranslatedRequest:
        """A chat completion, or a text completion. Raises :class:`~llmk.api.RequestError`."""
        request = parse(GenerateRequest, body)
        if not request.prompt:
            return loaded(request, options_of(body))
        if request.raw:
            if request.system:
                raise RequestError("system: a prompt that is 'raw' has no system prompt", param="system")
            made = generated(request, {"prompt": request.prompt})
            return TranslatedRequest("text", made, request.stream, options_of(body), fit_max_tokens=True)
        system = [{"role": "system", "content": request.system}] if request.system else []
        made = generated(request, {"messages": [*system, {"role": "user", "content": request.prompt}]})
        return TranslatedRequest(
            "chat", made, request.stream, options_of(body), thinking=thinking(request), fit_max_tokens=True
        )

    def open(self, head: AnswerHead, options: Mapping[str, Any]) -> LineRenderer:
        """The renderer of a response."""
        return LineRenderer(head.id, options, is_chat=False)

    def result(self, result: Mapping[str, Any], options: Mapping[str, Any], model: ServedModelInfo) -> Any:
        """The response to a request to load the model."""
        end = {"done": True, "done_reason": options["done_reason"]}
        return {"model": options["model"], "created_at": timestamp(), "response": "", **end}

"""What the routes have in common: names of models, sampling, formats and errors."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from llmk.api import Frame, TranslatedRequest
from llmk_ollama.schema import Generation, LoadedModel, Options

Wire = dict[str, Any]

_UNLIMITED = 2**31 - 1
_SAME = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty")


class Route:
    """Errors, which all routes have in common."""

    def error(self, status: int, error: Mapping[str, Any]) -> Frame:
        """``{"error": ...}``."""
        return Frame({"error": error["message"]})


def options_of(body: Mapping[str, Any], **more: Any) -> Wire:
    """What a renderer must know of a request: the model's name as the client has it, and when the request arrived, in
    nanoseconds."""
    return {"model": body.get("model", ""), "arrived": time.monotonic_ns(), **more}


def generated(request: Generation, body: Wire) -> Wire:
    """The body of a completion of ``request``, whose prompt is in ``body``."""
    made = {"model": request.model, **body, **_sampling(request.options)}
    if isinstance(request.format, dict):
        schema = {"name": "output", "schema": request.format}
        made["response_format"] = {"type": "json_schema", "json_schema": schema}
        made |= {"unenforceable": request.unenforceable} if request.unenforceable else {}
    elif request.format:
        made["response_format"] = {"type": "json_object"}
    return made


def thinking(request: Generation) -> bool | str | None:
    """Whether the model should think, and how much."""
    return "high" if request.think == "max" else request.think or (False if request.think is False else None)


def loaded(request: LoadedModel, options: Wire) -> TranslatedRequest:
    """The request to load a model, or to unload it, which needs no engine."""
    reason = "unload" if request.is_unloaded else "load"
    return TranslatedRequest("info", {"model": request.model}, options={**options, "done_reason": reason})


def timestamp(seconds: float | None = None) -> str:
    """A point in time, now if not given, as the API has it."""
    moment = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _sampling(options: Options) -> Wire:
    made = {name: value for name in _SAME if (value := getattr(options, name)) is not None}
    if options.repeat_penalty is not None:
        made["repetition_penalty"] = options.repeat_penalty
    if options.top_k is not None:
        made["top_k"] = max(options.top_k, 0)
    if options.seed is not None and options.seed >= 0:
        made["seed"] = options.seed
    if stop := [text for text in options.stop or () if text]:
        made["stop"] = stop
    limited = options.num_predict is not None and options.num_predict > 0
    return {**made, "max_tokens": options.num_predict if limited else _UNLIMITED}

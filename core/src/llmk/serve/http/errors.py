"""OpenAI's error objects for all errors. Worker processes need them too, so this imports no FastAPI."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Self

from llmk.api import EngineDead, LlmkError, Overloaded, RequestError
from llmk.serve.http.json_response import JsonResponse

logger = logging.getLogger(__name__)

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_CODES = {
    400: "invalid_request_error",
    401: "invalid_api_key",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "read_timeout",
    413: "request_too_large",
    415: "unsupported_media_type",
    421: "unknown_host",
    429: "rate_limit_exceeded",
    500: "internal_error",
    503: "unavailable",
}
CLIENT_GONE = 499
"""The status, in metrics and log, of a request whose client disconnected."""
MESSAGE_LIMIT = 2000
PARAM_LIMIT = 200
"""Limits of an error's texts, in characters: they may quote the request, which can have megabytes."""


class UnknownModel(RequestError):
    """The request names a model that is not served here."""

    code, http_status = "model_not_found", 404


class InvalidForm(RequestError):
    """The body is not a form with one file."""

    code = "invalid_form"


def check_model(name: object, served: str, adapters: Collection[str] = ()) -> None:
    """Raises :class:`UnknownModel` if ``name`` is neither the served model nor one of its adapters; ``None`` is
    accepted."""
    if isinstance(name, str) and name != served and name not in adapters:
        with_adapters = f", and its adapters {', '.join(map(repr, adapters))}" if adapters else ""
        raise UnknownModel(f"the model {name!r} is not served here; {served!r} is{with_adapters}", param="model")


class Forbidden(LlmkError):
    """The client may not do this."""

    code, http_status = "forbidden", 403


class ParserFailed(LlmkError):
    """A reasoning or tool parser raised, did not return, or ended its process. Only its request fails."""

    code = "parser_error"

    @classmethod
    def by(cls, id: str, what: str) -> Self:
        """The error for the parser ``id``."""
        hint = "choose another one, or 'none', under select.reasoning_parser or select.tool_parser"
        return cls(f"the parser {id} {what}", hint=hint)


class ShuttingDown(LlmkError):
    """The server stopped before the request was finished."""

    code, http_status = "shutting_down", 503


def error_object(message: str, status: int, *, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """``{"error": {"message", "type", "param", "code"}}``, with long texts truncated."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    code = code or _CODES.get(status, kind)
    field = None if param is None else shortened(param, PARAM_LIMIT)
    return {"error": {"message": shortened(message, MESSAGE_LIMIT), "type": kind, "param": field, "code": code}}


def shortened(text: str, limit: int) -> str:
    """At most ``limit`` characters of ``text``; what can't be encoded is escaped."""
    cut = text if len(text) <= limit else f"{text[: limit - 1]}…"
    return cut.encode("utf-8", "backslashreplace").decode()


def describe(error: BaseException) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, error object and headers for an exception. An unexpected one is reported as an internal error."""
    if isinstance(error, LlmkError):
        param = getattr(error, "param", None)
        # Clients need not distinguish whether the engine or the request's schema refused a value.
        code = "invalid_value" if param and error.code == RequestError.code else error.code
        body = error_object(str(error), error.http_status, param=param, code=code)
        wait = error.retry_after if isinstance(error, Overloaded | EngineDead) else 0.0
        return error.http_status, body, {"retry-after": str(math.ceil(wait))} if wait > 0 else {}
    return 500, error_object("internal error; the server's log says more", 500, code="internal_error"), {}


def reply(error: BaseException) -> JsonResponse:
    """The response to an exception."""
    status, body, headers = describe(error)
    log(error, status)
    return JsonResponse(body, status, headers)


def log(error: BaseException, status: int) -> None:
    """Logs server errors, with a traceback if they are unexpected."""
    if status >= 500:
        expected = isinstance(error, LlmkError) and error.__cause__ is None
        logger.error("request failed: %s", error, exc_info=None if expected else error)


def explain(errors: Sequence[Mapping[str, Any]], body: Any) -> tuple[str | None, str, str]:
    """Field, message and code for pydantic's ``errors`` about ``body``.

    Only the most deeply nested errors are reported, since these are in the branch of a union that the client meant.
    """
    placed = [(_path(error, body), error) for error in errors]
    path = max((path for path, _ in placed), key=len)
    deepest = [error for at, error in placed if at == path]
    param = _dotted(path) or None
    message = "; ".join(dict.fromkeys(str(error["msg"]) for error in deepest))
    return param, f"{param}: {message}" if param else message, _code(str(deepest[0]["type"]))


def invalid(errors: Sequence[Mapping[str, Any]], body: Any) -> RequestError:
    """The error for pydantic's ``errors`` about ``body``."""
    param, message, _ = explain(errors, body)
    return RequestError(message, param=param)


def _path(error: Mapping[str, Any], body: Any) -> tuple[str | int, ...]:
    """The path of an error in the body, without the names of union branches, which pydantic adds."""
    path: list[str | int] = []
    field = error.get("ctx", {}).get("field")
    for at, step in enumerate(error["loc"], 1):
        if isinstance(body, dict) and isinstance(step, str):
            if step not in body and (field or at < len(error["loc"])):
                continue  # the tag of a union; a field that is missing is the last step
            path.append(step)
            body = body.get(step)
        elif isinstance(body, list) and isinstance(step, int):
            path.append(step)
            body = body[step] if step < len(body) else None
    return (*path, field) if field else tuple(path)


def _dotted(path: Sequence[str | int]) -> str:
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


def _code(kind: str) -> str:
    if kind in ("unknown_parameter", "unsupported_parameter", "invalid_json"):
        return kind
    if kind == "missing":
        return "missing_required_parameter"
    return "invalid_type" if kind.endswith("_type") else "invalid_value"

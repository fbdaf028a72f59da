"""How the application answers requests that raise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from http import HTTPStatus
from typing import cast

from fastapi import FastAPI
from fastapi import HTTPException as RouteError
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Match

from llmk.api import LlmkError
from llmk.serve.http.errors import CLIENT_GONE, PARAM_LIMIT, error_object, invalid, reply
from llmk.serve.http.json_response import JsonResponse


class Refused(RouteError):
    """A request that is refused because of its transfer, such as its size or speed. May be raised by reading the
    body."""

    def __init__(
        self, status: int, message: str, *, code: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(status, message, dict(headers or {}))
        self.code = code


def install(app: FastAPI) -> None:
    """Makes ``app`` send an error object for every error."""
    app.add_exception_handler(LlmkError, _on_error)
    app.add_exception_handler(RequestValidationError, _on_parameters)
    app.add_exception_handler(HTTPException, _on_http)


async def _on_error(request: Request, error: Exception) -> JsonResponse:
    return reply(error)


async def _on_parameters(request: Request, error: Exception) -> JsonResponse:
    """Of the query: other parameters are texts."""
    found = [{**one, "loc": one["loc"][1:]} for one in cast(RequestValidationError, error).errors()]
    return reply(invalid(found, dict(request.query_params)))


async def _on_http(request: Request, error: Exception) -> JsonResponse:
    http = cast(HTTPException, error)
    phrase = HTTPStatus(http.status_code).phrase if http.status_code != CLIENT_GONE else ""
    message = http.detail if http.detail and http.detail != phrase else f"{phrase}: {request.method} {request.url.path}"
    code = getattr(http, "code", None)
    if isinstance(http.__cause__, UnicodeDecodeError | RecursionError | ValueError):
        message, code = f"the body is not valid JSON: {http.__cause__}", "invalid_json"
    headers = {name.lower(): value for name, value in (http.headers or {}).items()}
    if http.status_code == HTTPStatus.NOT_FOUND and http.detail == phrase:
        message = _no_route(request)
    elif http.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["allow"] = ", ".join(_methods(request))
        message = f"{request.url.path[:PARAM_LIMIT]} takes {headers['allow']}, not {request.method}"
    return JsonResponse(error_object(message, http.status_code, code=code), http.status_code, headers)


def _no_route(request: Request) -> str:
    """What was requested, and the route that may have been meant: clients may leave out ``/v1``, or add a slash, and
    people open the base URL of clients in a browser."""
    path = request.url.path[:PARAM_LIMIT]
    known, plain = request.app.state.paths, path.rstrip("/")
    near = [each for each in (f"/v1{plain}", plain, f"{plain}/models") if each in known]
    near = near or get_close_matches(path, known, 1, 0.85)
    hint = f"did you mean {near[0]}?" if near else "GET /openapi.json lists the routes of this server"
    return f"there is no route {request.method} {path}; {hint}"


def _methods(request: Request) -> Iterator[str]:
    """The methods of all routes of a path."""
    for method in ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT"):
        scope = {**request.scope, "method": method}
        if any(route.matches(scope)[0] is Match.FULL for route in request.app.routes):
            yield method

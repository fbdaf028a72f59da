"""Runs work as long as its client is connected."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive

from llmk.serve.http import errors

T = TypeVar("T")

CLIENT_GONE = 499
"""The status, in metrics and log, of a request whose client disconnected."""


class ClientGone(Exception):
    """The client disconnected before the response was sent."""


async def while_connected(work: Coroutine[Any, Any, T], receive: Receive, stopping: asyncio.Event) -> T:
    """Runs ``work``, and cancels it if the client disconnects or the server stops. Raises :class:`ClientGone` or
    ``ShuttingDown`` then."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnected(receive))
    stop = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait((task, gone, stop), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if gone.done():
            raise ClientGone
        raise errors.ShuttingDown("the server is shutting down and could not finish this request in time")
    finally:
        for part in (task, gone, stop):
            part.cancel()
        await asyncio.gather(task, gone, stop, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def on_client_gone(request: Request, error: Exception) -> Response:
    """A response that no client receives, so that the request has a status."""
    return Response(status_code=CLIENT_GONE)

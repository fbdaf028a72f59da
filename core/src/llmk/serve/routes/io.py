"""``/v1/io``: requests in formats that plugins define."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from llmk.serve.http import errors
from llmk.serve.http.disconnects import ClientGone, while_connected
from llmk.serve.http.json_response import JsonResponse
from llmk.serve.service import Service, body_of, context_of, new_id, service

router = APIRouter(prefix="/v1/io")


@router.get("")
async def processors(service: Annotated[Service, Depends(service)]) -> Response:
    """Lists the installed IO processors, and whether they support this model."""
    return JsonResponse({"object": "list", "data": service.engine.io_processors})


@router.post("/{name}")
async def process(
    name: str,
    request: Request,
    service: Annotated[Service, Depends(service)],
) -> Response:
    """Has the IO processor with that name or id process the body."""
    body, host = await body_of(request), service.workers.io
    return _Processed(service, service.engine.process_in(host, name, body, context_of(request, new_id("io"))))


class _Processed(Response):
    """Sends the result of ``work``, which is cancelled if the client disconnects or the server stops."""

    media_type = "application/json"

    def __init__(self, service: Service, work: Coroutine[Any, Any, bytes]) -> None:
        super().__init__()
        self._service = service
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the response."""
        try:
            answer = await while_connected(self._work, receive, self._service.stopping)
        except ClientGone:
            scope["state"]["status"] = errors.CLIENT_GONE
        except Exception as error:
            await errors.reply(error)(scope, receive, send)
        else:
            await Response(answer, media_type=self.media_type)(scope, receive, send)

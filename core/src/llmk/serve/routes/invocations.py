"""``/invocations`` and ``/ping``, by which Amazon SageMaker uses a model."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from llmk.serve.http.openapi import body
from llmk.serve.protocol.chat import ChatRequest
from llmk.serve.protocol.completions import CompletionRequest
from llmk.serve.routes import chat, completions
from llmk.serve.routes.service import health
from llmk.serve.service import Service, new_id, service
from llmk.serve.workers.prepared_request import INVOCATION, Generation

router = APIRouter()


@router.post("/invocations", openapi_extra=body(ChatRequest, CompletionRequest))
async def invocations(request: Request, service: Annotated[Service, Depends(service)]) -> Response:
    """Answers a conversation, if the body has `messages`, or continues a text."""
    made: Generation = await service.prepare(INVOCATION, request, new_id("invocation"))
    return chat.answered(service, made) if made.chat else completions.answered(service, made)


@router.get("/ping")
async def ping(service: Annotated[Service, Depends(service)]) -> Response:
    """The same as `/health`."""
    response: Response = await health(service)
    return response

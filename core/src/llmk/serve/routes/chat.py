"""``/v1/chat/completions``."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from llmk.serve.generation.chat_response import ChatRenderer
from llmk.serve.http.openapi import body
from llmk.serve.protocol.chat import ChatRequest
from llmk.serve.service import Service, new_id, service
from llmk.serve.streaming import AnswerResponse
from llmk.serve.workers.prepared_request import Generation

router = APIRouter()
BODIES = (ChatRequest,)


@router.post("/v1/chat/completions", openapi_extra=body(ChatRequest))
async def chat_completions(request: Request, service: Annotated[Service, Depends(service)]) -> Response:
    """Answers a conversation."""
    return answered(service, await service.prepare("chat", request, new_id("chatcmpl")))


def answered(service: Service, made: Generation) -> Response:
    """The answer to a conversation."""
    return AnswerResponse(service, made.job(), renderer(service, made), stream=made.stream)


def renderer(service: Service, made: Generation) -> ChatRenderer:
    """The renderer of a response."""
    return ChatRenderer(
        service.head(made.context),
        service.engine.tokenizer,
        logprobs=made.logprobs,
        include_usage=made.include_usage,
        continuous_usage=made.continuous_usage,
    )

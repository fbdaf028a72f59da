"""``/v1/chat/completions``."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.responses import Response

from llmk.serve.answer import AnswerResponse
from llmk.serve.protocol.chat import ChatRequest
from llmk.serve.render_chat import ChatRenderer
from llmk.serve.service import Service, new_id, service, tenant

router = APIRouter()


@router.post("/v1/chat/completions")
async def chat_completions(
    request: ChatRequest, service: Annotated[Service, Depends(service)], tenant: Annotated[str, Depends(tenant)]
) -> Response:
    """Answers a conversation."""
    service.check_model(request.model)
    id = new_id("chatcmpl")
    job = replace(await service.prepare(service.jobs.chat, request, id), tenant=tenant)
    renderer = ChatRenderer(
        service.head(id),
        service.engine.tokenizer,
        logprobs=request.logprobs,
        include_usage=request.include_usage,
        continuous_usage=request.continuous_usage,
    )
    return AnswerResponse(service, job, renderer, stream=request.stream)

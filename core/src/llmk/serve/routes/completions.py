"""``/v1/completions``."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from llmk.serve.generation.completion_response import CompletionRenderer
from llmk.serve.http.openapi import body
from llmk.serve.protocol.completions import CompletionRequest
from llmk.serve.service import Service, new_id, service
from llmk.serve.streaming import AnswerResponse
from llmk.serve.workers.prepared_request import Generation

router = APIRouter()
BODIES = (CompletionRequest,)


@router.post("/v1/completions", openapi_extra=body(CompletionRequest))
async def completions(request: Request, service: Annotated[Service, Depends(service)]) -> Response:
    """Continues a text, or several."""
    return answered(service, await service.prepare("text", request, new_id("cmpl")))


def answered(service: Service, made: Generation) -> Response:
    """The answer to one or several texts."""
    return AnswerResponse(service, made.job(), renderer(service, made), stream=made.stream)


def renderer(service: Service, made: Generation) -> CompletionRenderer:
    """The renderer of a response."""
    return CompletionRenderer(
        service.head(made.context),
        service.engine.tokenizer,
        logprobs=made.logprobs,
        include_usage=made.include_usage,
        continuous_usage=made.continuous_usage,
        echo=made.echo,
    )

"""``/v1/completions``."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.responses import Response

from llmk.serve.answer import AnswerResponse
from llmk.serve.protocol.completions import CompletionRequest
from llmk.serve.render_completions import CompletionRenderer
from llmk.serve.service import Service, new_id, service, tenant

router = APIRouter()


@router.post("/v1/completions")
async def completions(
    request: CompletionRequest, service: Annotated[Service, Depends(service)], tenant: Annotated[str, Depends(tenant)]
) -> Response:
    """Continues a text, or several."""
    service.check_model(request.model)
    id = new_id("cmpl")
    job = replace(await service.prepare(service.jobs.text, request, id), tenant=tenant)
    renderer = CompletionRenderer(
        service.head(id),
        service.engine.tokenizer,
        logprobs=request.logprobs is not None,
        include_usage=request.include_usage,
        continuous_usage=request.continuous_usage,
        echo=service.jobs.echo(request) if request.echo else (),
    )
    return AnswerResponse(service, job, renderer, stream=request.stream)

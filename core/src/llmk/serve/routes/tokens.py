"""``/tokenize`` and ``/detokenize``."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from llmk.serve.http.json_response import JsonResponse
from llmk.serve.http.openapi import body
from llmk.serve.protocol.tokens import DetokenizeRequest, TokenizeRequest
from llmk.serve.service import Service, service
from llmk.serve.workers.prepared_request import Rendered

router = APIRouter()
BODIES = (TokenizeRequest, DetokenizeRequest)


@router.post("/tokenize", openapi_extra=body(TokenizeRequest))
async def tokenize(request: Request, service: Annotated[Service, Depends(service)]) -> Response:
    """Tokenizes a prompt, or a conversation rendered with the chat template."""
    made: Rendered = await service.prepare("tokenize", request)
    return Response(made.body, media_type="application/json")


@router.get("/tokenizer_info")
async def tokenizer_info(service: Annotated[Service, Depends(service)]) -> Response:
    """The texts of the tokens that the checkpoint names, such as `eos_token`."""
    return JsonResponse(dict(service.engine.tokenizer.named_tokens))


@router.post("/detokenize", openapi_extra=body(DetokenizeRequest))
async def detokenize(request: Request, service: Annotated[Service, Depends(service)]) -> Response:
    """Decodes tokens to text, including special tokens."""
    made: Rendered = await service.prepare("detokenize", request)
    return Response(made.body, media_type="application/json")

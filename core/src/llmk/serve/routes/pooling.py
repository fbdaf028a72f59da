"""``/v1/embeddings``, ``/v1/score``, ``/v1/rerank``, ``/v1/classify`` and ``/pooling``."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from llmk.serve.http.disconnects import while_connected
from llmk.serve.http.json_response import JsonResponse
from llmk.serve.http.openapi import body
from llmk.serve.pooled_response import pooled
from llmk.serve.protocol.pooling import (
    ClassifyRequest,
    EmbeddingRequest,
    PoolingRequest,
    RerankRequest,
    ScoreRequest,
)
from llmk.serve.service import Service, new_id, service

router = APIRouter()
BODIES = (EmbeddingRequest, PoolingRequest, ClassifyRequest, ScoreRequest, RerankRequest)


@router.post("/v1/embeddings", openapi_extra=body(EmbeddingRequest))
async def embeddings(request: Request, service: Annotated[Service, Depends(service)]) -> Response:
    """Computes an embedding of each input."""
    return await _answer("embed", "embd", request, service)


@router.post("/pooling", openapi_extra=body(PoolingRequest))
async def pooling(request: Request, service: Annotated[Service, Depends(service)]) -> Response:
    """Computes embeddings, of inputs or of their tokens, or probabilities of labels."""
    return await _answer("pool", "pool", request, service)


@router.post("/v1/classify", openapi_extra=body(ClassifyRequest))
@router.post("/classify", openapi_extra=body(ClassifyRequest))
async def classify(request: Request, service: Annotated[Service, Depends(service)]) -> Response:
    """Computes the probabilities of a classifier's labels for each input."""
    return await _answer("classify", "classify", request, service)


@router.post("/v1/score", openapi_extra=body(ScoreRequest))
@router.post("/score", openapi_extra=body(ScoreRequest))
async def score(request: Request, service: Annotated[Service, Depends(service)]) -> Response:
    """Scores texts for a query, or each for its own."""
    return await _answer("score", "score", request, service)


@router.post("/v1/rerank", openapi_extra=body(RerankRequest))
@router.post("/rerank", openapi_extra=body(RerankRequest))
async def rerank(request: Request, service: Annotated[Service, Depends(service)]) -> Response:
    """Sorts documents by how well they fit a query."""
    return await _answer("rerank", "rerank", request, service)


@router.post("/v2/rerank", openapi_extra=body(RerankRequest))
async def rerank_v2(request: Request, service: Annotated[Service, Depends(service)]) -> Response:
    """The same; results have their documents only where the request says so."""
    return await _answer("rerank_v2", "rerank", request, service)


async def _answer(kind: str, prefix: str, request: Request, service: Service) -> Response:
    job = await service.prepare(kind, request, new_id(prefix))
    return JsonResponse(await while_connected(pooled(service, job), request.receive, service.stopping))

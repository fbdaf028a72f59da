"""``/v1/models``."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException
from starlette.responses import Response

from llmk.serve.generation.pooling_jobs import capabilities_of
from llmk.serve.http.json_response import JsonResponse
from llmk.serve.service import Service, service

router = APIRouter()


@router.get("/v1/models")
async def models(service: Annotated[Service, Depends(service)]) -> Response:
    """Lists the served model, and its adapters."""
    names = (service.engine.model_name, *service.engine.adapters)
    return JsonResponse({"object": "list", "data": [_card(service, name) for name in names]})


@router.get("/v1/models/{id:path}")
async def model(id: str, service: Annotated[Service, Depends(service)]) -> Response:
    """The model, or an adapter, by its name, which may contain slashes."""
    if not id:
        raise HTTPException(HTTPStatus.NOT_FOUND)
    service.check_model(id)
    return JsonResponse(_card(service, id))


def _card(service: Service, name: str) -> dict[str, Any]:
    parent = {} if name == service.engine.model_name else {"parent": service.engine.model_name}
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "llmk",
        "max_model_len": service.engine.info.max_model_len,
        "capabilities": capabilities_of(service.engine.boot.pooling),
        **parent,
    }

"""``/v1/models``."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from starlette.responses import Response

from llmk.serve.http.json_response import JsonResponse
from llmk.serve.service import Service, service

router = APIRouter()


@router.get("/v1/models")
async def models(service: Annotated[Service, Depends(service)]) -> Response:
    """Lists the served model."""
    return JsonResponse({"object": "list", "data": [_card(service)]})


@router.get("/v1/models/{id:path}")
async def model(id: str, service: Annotated[Service, Depends(service)]) -> Response:
    """The model by its name, which may contain slashes."""
    service.check_model(id)
    return JsonResponse(_card(service))


def _card(service: Service) -> dict[str, Any]:
    return {
        "id": service.engine.model_name,
        "object": "model",
        "created": service.created,
        "owned_by": "llmk",
        "max_model_len": service.engine.info.max_model_len,
    }

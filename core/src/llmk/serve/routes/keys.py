"""``/v1/keys``, for operators, and ``/v1/key``, for everyone: keys with their quotas and usage. ``llmk keys`` changes
them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from llmk.serve.http.json_response import JsonResponse
from llmk.serve.service import Service, admin, service
from llmk.serve.tenants.collector import describe

router = APIRouter(prefix="/v1")


@router.get("/key")
async def key(request: Request) -> Response:
    """The key of this request: its quotas, what it has used, and what is left; null where it is not of the database."""
    account = getattr(request.state, "account", None)
    return JsonResponse({"object": "own_key", "key": None if account is None else describe(account)})


@router.get("/keys", dependencies=[Depends(admin)])
async def keys(service: Annotated[Service, Depends(service)]) -> Response:
    """Lists the keys of the database with what they have used; an empty list where there is none."""
    accounts = service.ledger.accounts() if service.ledger else ()
    return JsonResponse({"object": "list", "data": [describe(account) for account in accounts]})

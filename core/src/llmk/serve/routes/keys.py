"""``/v1/keys``: keys with their quotas and usage. For operators only; ``llmk keys`` changes them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.responses import Response

from llmk.serve.http.json_response import JsonResponse
from llmk.serve.service import Service, admin, service
from llmk.serve.tenants.collector import describe

router = APIRouter(prefix="/v1/keys", dependencies=[Depends(admin)])


@router.get("")
async def keys(service: Annotated[Service, Depends(service)]) -> Response:
    """Lists the keys of the database with what they have used; an empty list where there is none."""
    accounts = service.ledger.accounts() if service.ledger else ()
    return JsonResponse({"object": "list", "data": [describe(account) for account in accounts]})

"""``/v1/cache/pins``: prefixes that stay in the cache. For operators only."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from llmk.api import RequestError
from llmk.engine.text.pinned_prefixes import PinnedPrefix
from llmk.serve.http.json_response import JsonResponse
from llmk.serve.http.openapi import body
from llmk.serve.protocol.pins import PinRequest
from llmk.serve.service import Service, admin, service
from llmk.serve.workers.prepared_request import Pinning, unpacked

router = APIRouter(prefix="/v1/cache/pins", dependencies=[Depends(admin)])
BODIES = (PinRequest,)


class UnknownPin(RequestError):
    """The request names a pin that does not exist."""

    code, http_status = "pin_not_found", 404


@router.post("", openapi_extra=body(PinRequest))
async def pin(request: Request, service: Annotated[Service, Depends(service)]) -> Response:
    """Computes a prefix where it isn't cached, and keeps it, in place of what its id kept before."""
    made: Pinning = await service.prepare("pin", request)
    pinned = await service.engine.pin(unpacked(made.tokens), made.context, seconds=made.seconds)
    return JsonResponse(_plain(pinned))


@router.get("")
async def pins(service: Annotated[Service, Depends(service)]) -> Response:
    """Lists the pins."""
    return JsonResponse({"data": [_plain(pinned) for pinned in service.engine.pins.current()]})


@router.delete("/{id}")
async def unpin(id: str, service: Annotated[Service, Depends(service)]) -> Response:
    """Removes a pin. Raises :class:`UnknownPin`."""
    if not await service.engine.unpin(id):
        known = ", ".join(pinned.id for pinned in service.engine.pins.current()) or "none"
        raise UnknownPin(f"there is no pin {id!r} (pinned: {known})", param="id")
    return JsonResponse({"id": id, "deleted": True})


def _plain(pinned: PinnedPrefix) -> dict[str, Any]:
    return {
        "id": pinned.id,
        "object": "cache.pin",
        "tokens": pinned.num_tokens,
        "expires_at": pinned.until,
        "cache_salt": pinned.cache_salt,
        "tenant": pinned.tenant,
    }

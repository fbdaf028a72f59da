"""``/v1/batches``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Query
from starlette.requests import Request
from starlette.responses import Response

from llmk.api import Overloaded, RequestError
from llmk.serve.batches import batch as batches
from llmk.serve.batches.batch import BATCH, UNFINISHED, Batch, StoredBatch, new_batch_id
from llmk.serve.batches.endpoints import endpoints
from llmk.serve.batches.runner import Batches
from llmk.serve.http.auth import tenant_of
from llmk.serve.http.json_response import JsonResponse
from llmk.serve.http.openapi import body
from llmk.serve.protocol.batches import UNITS, BatchRequest
from llmk.serve.protocol.files import ListQuery
from llmk.serve.routes.files import page_of
from llmk.serve.service import Service, service
from llmk.serve.storage import files
from llmk.serve.storage.errors import UnknownObject
from llmk.serve.workers.prepared_request import Rendered

if TYPE_CHECKING:
    from llmk.serve.storage.transaction import Transaction

router = APIRouter(prefix="/v1/batches")
BODIES = (BatchRequest,)


@router.post("", openapi_extra=body(BatchRequest))
async def create(request: Request, service: Annotated[Service, Depends(service)]) -> Response:
    """Creates a batch, which is run behind other requests."""
    made: Rendered = await service.prepare("batch", request)
    fields = msgspec.json.decode(made.body)
    known = endpoints(service)
    if fields["endpoint"] not in known:
        message = f"this server runs no batches of {fields['endpoint']}, only of {', '.join(known)}"
        raise RequestError(message, param="endpoint")
    tenant, new = tenant_of(request.scope), _batch_of(service, fields)
    most = service.storage.section.batches_per_client

    def create(to: Transaction) -> None:
        _check_input(to, tenant, fields["input_file_id"])
        if sum(one.tenant == tenant for one in to.all_of(UNFINISHED)) >= most:
            raise Overloaded(f"{most} batches of this client are unfinished, the limit (storage.batches_per_client)")
        new.create(to, tenant)

    await service.storage.run(create, tenant)
    _runner(request).search()
    return JsonResponse(new.shown)


@router.get("")
async def list_batches(
    request: Request, query: Annotated[ListQuery, Query()], service: Annotated[Service, Depends(service)]
) -> Response:
    """Lists batches, newest first."""
    tenant = tenant_of(request.scope)

    def find(to: Transaction) -> tuple[list[Batch], bool]:
        found, more = to.page(tenant, BATCH, after=query.after, limit=query.limit)
        return [batches.counted(to, one).shown for one in found], more

    return JsonResponse(page_of(*await service.storage.run(find, tenant)))


@router.get("/{id}")
async def get_batch(id: str, request: Request, service: Annotated[Service, Depends(service)]) -> Response:
    """Describes a batch."""
    tenant = tenant_of(request.scope)
    found = await service.storage.run(lambda to: batches.get(to, tenant, id), tenant)
    return JsonResponse(found.shown)


@router.post("/{id}/cancel")
async def cancel(id: str, request: Request, service: Annotated[Service, Depends(service)]) -> Response:
    """Stops a batch. Results of requests that have ended are kept."""
    tenant = tenant_of(request.scope)

    def change(to: Transaction) -> StoredBatch:
        found = batches.get(to, tenant, id)
        if found.shown.status in ("validating", "in_progress"):
            found.shown.enter("cancelling")
            found.ending = "cancelled"
            found.save(to, tenant)
        elif found.shown.status not in ("cancelling", "cancelled"):
            raise RequestError(f"the batch can't be cancelled, since its status is {found.shown.status}", param="id")
        return found

    found = await service.storage.run(change, tenant)
    _runner(request).cancel(id)
    return JsonResponse(found.shown)


def _batch_of(service: Service, fields: dict[str, Any]) -> StoredBatch:
    """The new batch that a request describes."""
    window = fields["completion_window"]
    now = int(time.time())
    shown = Batch(
        id=new_batch_id(),
        endpoint=fields["endpoint"],
        model=service.engine.model_name,
        input_file_id=fields["input_file_id"],
        completion_window=window,
        created_at=now,
        expires_at=now + int(window[:-1]) * UNITS[window[-1]],
        metadata=fields["metadata"],
    )
    after = fields["output_expires_after"]
    return StoredBatch(shown, after["seconds"] if after else service.storage.section.seconds)


def _check_input(to: Transaction, tenant: str, id: str) -> None:
    """Raises RequestError if there is no such input file."""
    try:
        file = files.get(to, tenant, id)
    except UnknownObject:
        raise RequestError(f"there is no file {id!r}", param="input_file_id", hint="upload it to /v1/files") from None
    if file.purpose != "batch":
        message = f"the file {id!r} was uploaded with the purpose {file.purpose!r}, not 'batch'"
        raise RequestError(message, param="input_file_id")


def _runner(request: Request) -> Batches:
    found: Batches = request.app.state.batches
    return found

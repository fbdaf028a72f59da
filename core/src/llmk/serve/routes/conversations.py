"""``/v1/conversations``: items that responses continue."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from fastapi import APIRouter, Depends
from msgspec import Raw
from starlette.requests import Request
from starlette.responses import Response

from llmk.api import RequestError
from llmk.serve import history
from llmk.serve.http.auth import tenant_of
from llmk.serve.http.json_response import JsonResponse
from llmk.serve.http.openapi import body
from llmk.serve.responses.request import ConversationRequest, ConversationUpdate, ItemsRequest
from llmk.serve.responses.route import ADD, CONVERSE, UPDATE
from llmk.serve.responses.stored import CONVERSATION, ITEM, id_of
from llmk.serve.service import Service, service
from llmk.serve.storage.errors import UnknownObject
from llmk.serve.workers.prepared_request import ROUTE

if TYPE_CHECKING:
    from llmk.serve.storage.transaction import Transaction

router = APIRouter(prefix="/v1/conversations")
BODIES = (ConversationRequest, ConversationUpdate, ItemsRequest)

MOST_ADDED = 20
"""Items that can be added at once, as in OpenAI's API."""


class _Checked(msgspec.Struct):
    """What a worker made of a body."""

    metadata: Raw = Raw(b"{}")
    items: list[Raw] = []


class _Conversation(msgspec.Struct):
    id: str
    created_at: int
    metadata: Raw
    object: str = "conversation"


@router.post("", openapi_extra=body(ConversationRequest))
async def create(request: Request, service: Annotated[Service, Depends(service)]) -> Response:
    """Creates a conversation."""
    tenant, given = tenant_of(request.scope), await _checked(service, CONVERSE, request)
    created = _Conversation(f"conv_{uuid.uuid4().hex}", int(time.time()), given.metadata)
    data = msgspec.json.encode(created)

    def store(to: Transaction) -> None:
        to.put(tenant, CONVERSATION, created.id, data)
        to.put_all(tenant, ITEM, _objects(given.items), parent=created.id)

    await service.storage.run(store, tenant)
    return Response(data, media_type="application/json")


@router.get("/{id}")
async def retrieve(id: str, request: Request, service: Annotated[Service, Depends(service)]) -> Response:
    """A conversation, without its items."""
    tenant = tenant_of(request.scope)
    found = await service.storage.run(lambda to: to.get(tenant, CONVERSATION, id), tenant)
    return Response(found.data, media_type="application/json")


@router.post("/{id}", openapi_extra=body(ConversationUpdate))
async def update(id: str, request: Request, service: Annotated[Service, Depends(service)]) -> Response:
    """Replaces the metadata of a conversation."""
    tenant, given = tenant_of(request.scope), await _checked(service, UPDATE, request)

    def store(to: Transaction) -> bytes:
        found = msgspec.json.decode(to.get(tenant, CONVERSATION, id).data, type=_Conversation)
        found.metadata = given.metadata
        data = msgspec.json.encode(found)
        to.replace(tenant, CONVERSATION, id, data)
        return data

    return Response(await service.storage.run(store, tenant), media_type="application/json")


@router.delete("/{id}")
async def delete(id: str, request: Request, service: Annotated[Service, Depends(service)]) -> Response:
    """Deletes a conversation with its items."""
    tenant = tenant_of(request.scope)
    await service.storage.run(lambda to: to.delete(tenant, CONVERSATION, id), tenant)
    return JsonResponse({"id": id, "object": "conversation.deleted", "deleted": True})


@router.post("/{id}/items", openapi_extra=body(ItemsRequest))
async def add_items(id: str, request: Request, service: Annotated[Service, Depends(service)]) -> Response:
    """Adds items to a conversation."""
    history.check_query(request.query_params, "include", "include[]")
    tenant, given = tenant_of(request.scope), await _checked(service, ADD, request)

    def store(to: Transaction) -> None:
        to.get(tenant, CONVERSATION, id)
        to.put_all(tenant, ITEM, _objects(given.items), parent=id)

    await service.storage.run(store, tenant)
    return history.listed(given.items, [id_of(item) for item in given.items], has_more=False)


@router.get("/{id}/items")
async def list_items(id: str, request: Request, service: Annotated[Service, Depends(service)]) -> Response:
    """Lists the items of a conversation."""
    tenant, page = tenant_of(request.scope), history.page_of(request.query_params)

    def read(to: Transaction) -> Any:
        to.get(tenant, CONVERSATION, id)
        return to.page(tenant, ITEM, parent=id, after=page.after, limit=page.limit, newest_first=page.newest_first)

    found, has_more = await service.storage.run(read, tenant)
    return history.listed([Raw(item.data) for item in found], [item.id for item in found], has_more=has_more)


@router.get("/{id}/items/{item_id}")
async def retrieve_item(
    id: str, item_id: str, request: Request, service: Annotated[Service, Depends(service)]
) -> Response:
    """An item of a conversation."""
    history.check_query(request.query_params, "include", "include[]")
    tenant = tenant_of(request.scope)
    found = await service.storage.run(lambda to: _item(to, tenant, id, item_id), tenant)
    return Response(found.data, media_type="application/json")


@router.delete("/{id}/items/{item_id}")
async def delete_item(
    id: str, item_id: str, request: Request, service: Annotated[Service, Depends(service)]
) -> Response:
    """Deletes an item of a conversation. Returns the conversation."""
    tenant = tenant_of(request.scope)

    def remove(to: Transaction) -> bytes:
        data: bytes = to.get(tenant, CONVERSATION, id).data
        _item(to, tenant, id, item_id)
        to.delete(tenant, ITEM, item_id)
        return data

    return Response(await service.storage.run(remove, tenant), media_type="application/json")


async def _checked(service: Service, name: str, request: Request) -> _Checked:
    made = await service.prepare(ROUTE + name, request)
    given = msgspec.json.decode(made.body, type=_Checked)
    if len(given.items) > MOST_ADDED:
        raise RequestError(f"{len(given.items)} items can't be added at once; {MOST_ADDED} can", param="items")
    return given


def _item(to: Transaction, tenant: str, conversation: str, id: str) -> Any:
    found = to.get(tenant, ITEM, id)
    if found.parent != conversation:
        raise UnknownObject("item", id)
    return found


def _objects(items: list[Raw]) -> list[tuple[str, bytes]]:
    return [(id_of(item), bytes(item)) for item in items]

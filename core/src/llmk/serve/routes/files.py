"""``/v1/files``."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

from fastapi import APIRouter, Depends, Query
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.types import Message, Receive, Scope, Send

from llmk.api import LlmkError, Overloaded
from llmk.serve.http import error_handlers, errors
from llmk.serve.http.auth import tenant_of
from llmk.serve.http.json_response import JsonResponse
from llmk.serve.http.openapi import form
from llmk.serve.protocol.files import FileForm, FilesQuery
from llmk.serve.service import Service, service
from llmk.serve.storage import files
from llmk.serve.storage.errors import StorageFull, StorageOff, UnknownObject
from llmk.serve.storage.files import StoredFile

if TYPE_CHECKING:
    from llmk.serve.storage.transaction import Transaction

router = APIRouter(prefix="/v1/files")
BODIES = (FileForm,)
MOST_DIGITS = 18


@router.post("", openapi_extra=form(FileForm))
async def upload(request: Request, service: Annotated[Service, Depends(service)]) -> Response:
    """Stores a file."""
    tenant = tenant_of(request.scope)
    with _uploading(service, tenant):
        file, content = await _received(request, service, tenant)

        def keep(to: Transaction) -> None:
            file.put(to, tenant)
            content.rename(service.storage.content(file.id))
            files.sync_folder(content.parent)

        try:
            await service.storage.run(keep, tenant)
        except LlmkError:
            service.storage.content(file.id).unlink(missing_ok=True)
            raise
        finally:
            content.unlink(missing_ok=True)
    return JsonResponse(file)


@router.get("")
async def list_files(
    request: Request, query: Annotated[FilesQuery, Query()], service: Annotated[Service, Depends(service)]
) -> Response:
    """Lists files."""
    tenant, newest_first = tenant_of(request.scope), query.order == "desc"
    found, more = await files.listed(
        service.storage,
        tenant,
        purpose=query.purpose,
        after=query.after,
        limit=query.limit,
        newest_first=newest_first,
    )
    return JsonResponse(page_of(found, more))


@router.get("/{id}")
async def get_file(id: str, request: Request, service: Annotated[Service, Depends(service)]) -> Response:
    """Describes a file."""
    tenant = tenant_of(request.scope)
    return JsonResponse(await service.storage.run(lambda to: files.get(to, tenant, id), tenant))


@router.get("/{id}/content")
async def content(id: str, request: Request, service: Annotated[Service, Depends(service)]) -> Response:
    """The content of a file."""
    tenant = tenant_of(request.scope)
    file = await service.storage.run(lambda to: files.get(to, tenant, id), tenant)
    place = service.storage.content(id)
    if not await asyncio.to_thread(place.exists):
        raise UnknownObject(files.FILE, id)
    return _Download(place, media_type="application/octet-stream", filename=file.filename)


@router.delete("/{id}")
async def delete_file(id: str, request: Request, service: Annotated[Service, Depends(service)]) -> Response:
    """Deletes a file."""
    await files.delete(service.storage, tenant_of(request.scope), id)
    return JsonResponse({"id": id, "object": "file", "deleted": True})


class _Download(FileResponse):
    """A file, which is sent without reading the request's body."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the file."""
        await super().__call__(scope, _nothing, send)


async def _nothing() -> Message:
    never: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
    return await never


async def _received(request: Request, service: Service, tenant: str) -> tuple[StoredFile, Path]:
    """The file that a request has, and where its content is for now."""
    storage = service.storage
    room = await storage.run(lambda to: to.room(tenant), tenant)
    try:
        from llmk.serve.http.multipart import FormReader, pieces
    except ImportError as error:
        hint = "the operator can install it: pip install 'llmk-core[storage]'"
        raise StorageOff("this server can't read forms: python-multipart is missing", hint=hint) from error

    def check(size: int) -> None:
        if size > (most := storage.section.file_bytes):
            raise error_handlers.Refused(413, f"the file is larger than {most} bytes (storage.file_bytes)")
        if size > room:
            what = f"you can store {room} bytes more; the limit is {storage.section.bytes_per_client}"
            raise StorageFull(f"{what} (storage.bytes_per_client)", hint="delete files that you no longer need")

    id = f"file-{uuid4().hex}"
    place = storage.content(f"{id}.part")
    reader = FormReader(request.headers.get("content-type", ""), place, check)
    try:
        async for piece in pieces(request.stream()):
            await asyncio.to_thread(reader.feed, piece)
        await asyncio.to_thread(reader.end)
        form = _form(reader.fields)
    except OSError as error:
        place.unlink(missing_ok=True)
        raise storage.failed(error) from error
    except BaseException:
        place.unlink(missing_ok=True)
        raise
    finally:
        reader.close()
    seconds = form.expires_after.seconds if form.expires_after else storage.section.seconds
    return StoredFile.new(id, reader.size, reader.filename or "", form.purpose, seconds), place


def _form(fields: Mapping[str, str]) -> FileForm:
    """The fields of an upload. The parts of ``expires_after`` are sent as fields like ``expires_after[seconds]``."""
    body: dict[str, Any] = {}
    after: dict[str, Any] = {}
    for name, text in fields.items():
        if name.startswith("expires_after["):
            is_number = text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS
            after[name.removeprefix("expires_after[").removesuffix("]")] = int(text) if is_number else text
        else:
            body[name] = text
    if after:
        body["expires_after"] = after
    try:
        return FileForm.model_validate(body)
    except ValidationError as error:
        raise errors.invalid(error.errors(include_url=False, include_input=False), body) from None


@contextlib.contextmanager
def _uploading(service: Service, tenant: str) -> Iterator[None]:
    """Counts an upload. Raises Overloaded if the client uploads too many files."""
    running, most = service.uploads, service.storage.section.uploads_per_client
    if running[tenant] >= most:
        raise Overloaded(f"you upload {most} files, as many as you may (storage.uploads_per_client); try again later")
    running[tenant] += 1
    try:
        yield
    finally:
        running[tenant] -= 1
        if not running[tenant]:
            del running[tenant]


def page_of(found: list[Any], more: bool) -> dict[str, Any]:
    """A page of a list, in OpenAI's format."""
    first, last = (found[0].id, found[-1].id) if found else (None, None)
    return {"object": "list", "data": found, "first_id": first, "last_id": last, "has_more": more}

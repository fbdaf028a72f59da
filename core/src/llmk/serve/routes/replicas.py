"""``/v1/replicas``: the engines behind a server. For operators only."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from starlette.responses import Response

from llmk.api import RequestError
from llmk.engine.processes.replica import Replica
from llmk.engine.processes.replicas import Replicas
from llmk.serve.http.json_response import JsonResponse
from llmk.serve.service import Service, admin, service

router = APIRouter(prefix="/v1/replicas", dependencies=[Depends(admin)])


class UnknownReplica(RequestError):
    """The request names a replica that does not exist."""

    code, http_status = "replica_not_found", 404


class NoReplicas(RequestError):
    """The server has one engine, and was not started with replicas."""

    code, http_status = "no_replicas", 409


@router.get("")
async def replicas(service: Annotated[Service, Depends(service)]) -> Response:
    """Lists the replicas."""
    return JsonResponse({"data": [_plain(each) for each in _replicas(service).members]})


@router.put("")
async def scale(
    service: Annotated[Service, Depends(service)],
    count: Annotated[int, Query(ge=1, le=1024)],
    patience: Annotated[float, Query(ge=0, le=3600)] = 30.0,
) -> Response:
    """Starts replicas until there are ``count``, or drains the last ones and ends them. What these have not done after
    ``patience`` seconds goes on elsewhere."""
    all_ = _replicas(service)
    await all_.scale(count, patience)
    return JsonResponse({"data": [_plain(each) for each in all_.members]})


@router.post("/{number}/drain")
async def drain(number: int, service: Annotated[Service, Depends(service)]) -> Response:
    """Gives a replica nothing new; what it has goes on there. Raises :class:`UnknownReplica`."""
    replica = _replica(service, number)
    await _replicas(service).drain(number)
    return JsonResponse(_plain(replica))


@router.post("/{number}/resume")
async def resume(number: int, service: Annotated[Service, Depends(service)]) -> Response:
    """Ends draining. Raises :class:`UnknownReplica`."""
    replica = _replica(service, number)
    await _replicas(service).resume(number)
    return JsonResponse(_plain(replica))


def _replicas(service: Service) -> Replicas:
    found = service.engine.replicas
    if found is None:
        raise NoReplicas("this server has one engine", hint="start it with --replicas 2 or more")
    return found


def _replica(service: Service, number: int) -> Replica:
    members = _replicas(service).members
    for replica in members:
        if replica.number == number:
            return replica
    known = ", ".join(str(each.number) for each in members)
    raise UnknownReplica(f"there is no replica {number} (there are: {known})", param="number")


def _plain(replica: Replica) -> dict[str, Any]:
    outage = replica.supervisor.outage
    return {
        "number": replica.number,
        "object": "replica",
        "status": replica.status,
        "running": replica.stats.running,
        "sequences": len(replica.placed),
        "tokens_to_compute": replica.load,
        "cached_blocks": len(replica.blocks.stored),
        "given": replica.given,
        "moved": replica.moved,
        "restarts": replica.stats.restarts,
        "cause": replica.unlike or (outage.cause if outage else ""),
    }

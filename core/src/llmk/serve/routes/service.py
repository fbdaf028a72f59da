"""Routes about the server: health, metrics, version, and the plan."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Depends
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

import llmk
from llmk.api import EngineDead
from llmk.serve.http import errors
from llmk.serve.http.json_response import JsonResponse
from llmk.serve.service import Service, service

router = APIRouter()


@router.get("/health")
async def health(service: Annotated[Service, Depends(service)]) -> Response:
    """200 if the engine is healthy, judged by its last heartbeat; otherwise an error object with 503. During a long
    step, ``busy_seconds`` is the time since it started. While the engine is being restarted, ``restarting`` says since
    when, why, and the number of attempts.
    """
    try:
        busy = service.engine.check_health()
    except EngineDead as error:
        status, body, headers = errors.describe(error)
        if outage := service.engine.outage:
            since = datetime.fromtimestamp(outage.since, UTC).isoformat(timespec="milliseconds")
            body["restarting"] = {"since": since, "cause": outage.cause, "attempts": outage.attempts}
        return JsonResponse(body, status, headers)
    return JsonResponse({"status": "ok", **({"busy_seconds": busy} if busy else {})})


@router.get("/metrics")
async def metrics(service: Annotated[Service, Depends(service)]) -> Response:
    """Prometheus metrics."""
    return Response(await service.metrics.render(), media_type=CONTENT_TYPE_LATEST)


@router.get("/version")
async def version() -> Response:
    """llmk's version."""
    return JsonResponse({"version": llmk.__version__})


@router.get("/server_info")
async def server_info(service: Annotated[Service, Depends(service)]) -> Response:
    """The version, the model and its adapters, and what a request may have: by the model and by `limits`."""
    engine = service.engine
    model = {
        "id": engine.model_name,
        "adapters": list(engine.adapters),
        "max_model_len": engine.info.max_model_len,
        "vocab_size": engine.info.vocab_size,
        "grammars": engine.info.grammars,
    }
    limits = {**service.limits.model_dump(), "request_bytes": service.config.max_request_bytes}
    return JsonResponse({"version": llmk.__version__, "model": model, "limits": limits})


@router.get("/v1/plan")
async def plan(service: Annotated[Service, Depends(service)]) -> Response:
    """The plan: the kernels chosen for every site of the model and its parsers, the reasons, and rejected
    candidates; the forecast of a device's memory; and the kinds of grammars that requests may have."""
    info = service.engine.info
    more = {"memory": service.memory, "parsers": service.dialect.describe(), "grammars": info.grammars}
    return JsonResponse({**info.plan, **more})

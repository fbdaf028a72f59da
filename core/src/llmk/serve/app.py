"""Creates the ASGI application."""

from __future__ import annotations

from typing import cast

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

import llmk
from llmk.serve.batches import routes as batch_routes
from llmk.serve.batches.runner import Batches
from llmk.serve.http import error_handlers, openapi
from llmk.serve.http.allowed_hosts import AllowedHosts
from llmk.serve.http.auth import ApiKeys
from llmk.serve.http.disconnects import ClientGone, on_client_gone
from llmk.serve.http.limits import Limits
from llmk.serve.http.pages import Pages
from llmk.serve.integrity import check_integrity
from llmk.serve.metrics.access_log import AccessLogMiddleware
from llmk.serve.plugin_routes import RouteResponses, router_of
from llmk.serve.routes import (
    chat,
    completions,
    conversations,
    files,
    invocations,
    io,
    keys,
    models,
    pins,
    pooling,
    replicas,
    responses,
    tokens,
)
from llmk.serve.routes import service as service_routes
from llmk.serve.service import Service
from llmk.serve.tenants.quotas import Quotas
from llmk.serve.workers.prepared_request import Refusal

_ROUTES = (
    *(chat, completions, pooling, responses, conversations, files, batch_routes),
    *(invocations, io, models, tokens, pins, replicas, keys, service_routes),
)


def create_app(service: Service) -> FastAPI:
    """The ASGI application for ``service``. Middleware is listed from the outermost to the innermost."""
    config = service.config
    check_integrity()
    with_keys = bool(config.api_keys or service.ledger)
    layers = [
        Middleware(AccessLogMiddleware, metrics=service.metrics),
        Middleware(AllowedHosts, section=config, with_keys=with_keys),
    ]
    if service.routes:
        layers.insert(0, Middleware(RouteResponses, routes=list(service.routes.values())))
    if service.pages:
        layers.append(Middleware(Pages, pages=service.pages))
    if config.cors_origins:
        layers.append(
            Middleware(CORSMiddleware, allow_origins=config.cors_origins, allow_methods=["*"], allow_headers=["*"])
        )
    if with_keys:
        layers.append(Middleware(ApiKeys, keys=config.api_keys, find=service.ledger.find if service.ledger else None))
    if service.ledger:
        layers.append(Middleware(Quotas, ledger=service.ledger))
    untyped = {route.spec.path for route in service.routes.values() if route.spec.any_content_type}
    upload_bytes = service.storage.section.file_bytes
    layers.append(Middleware(Limits, section=config, upload_bytes=upload_bytes, untyped=untyped))
    # Swagger UI is served from the wheel's files, and its validator badge is off, so that browsers load nothing from
    # other sites.
    app = FastAPIOffline(
        redoc_url=None,
        title="llmk",
        version=llmk.__version__,
        middleware=layers,
        swagger_ui_parameters={"validatorUrl": None},
    )
    app.state.service = service
    app.state.batches = Batches(service)
    error_handlers.install(app)
    app.add_exception_handler(Refusal, _on_refusal)
    app.add_exception_handler(ClientGone, on_client_gone)
    taken = set()
    for routes in _ROUTES:
        app.include_router(routes.router)
        taken |= {(method, route.path) for route in routes.router.routes for method in route.methods}
    app.include_router(router_of(service.routes, taken))
    app.state.paths = sorted({path for _, path in taken})
    bodies = [body for routes in _ROUTES for body in getattr(routes, "BODIES", ())]
    plugins = [route.spec for route in service.routes.values()]
    openapi.install(app, *bodies, with_keys=with_keys, plugins=plugins)
    return app


async def _on_refusal(request: Request, error: Exception) -> Response:
    return cast(Refusal, error).reply()

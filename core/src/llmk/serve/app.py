"""The application, put together."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

import llmk
from llmk.serve import errors, openapi
from llmk.serve.auth import ApiKeys
from llmk.serve.hosts import Hosts
from llmk.serve.integrity import check_integrity
from llmk.serve.limits import Limits
from llmk.serve.routes import chat, completions, io, models, pins, tokens
from llmk.serve.routes import service as service_routes
from llmk.serve.service import Service
from llmk.serve.traffic import Traffic


def create_app(service: Service) -> FastAPI:
    """The ASGI application that serves ``service``. The layers stand in the order in which a request meets them."""
    config = service.config
    check_integrity()
    layers = [Middleware(Traffic, metrics=service.metrics), Middleware(Hosts, section=config)]
    if config.cors_origins:
        layers.append(
            Middleware(CORSMiddleware, allow_origins=config.cors_origins, allow_methods=["*"], allow_headers=["*"])
        )
    if config.api_keys:
        layers.append(Middleware(ApiKeys, keys=config.api_keys))
    layers.append(Middleware(Limits, section=config))
    # Swagger UI from the wheel's own files, and no badge from a validator elsewhere: browsers load nothing from others.
    app = FastAPIOffline(
        redoc_url=None,
        title="llmk",
        version=llmk.__version__,
        middleware=layers,
        swagger_ui_parameters={"validatorUrl": None},
    )
    app.state.service = service
    errors.install(app)
    for routes in (chat, completions, io, models, tokens, pins, service_routes):
        app.include_router(routes.router)
    openapi.install(app, with_keys=bool(config.api_keys))
    return app

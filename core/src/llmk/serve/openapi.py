"""Bodies of requests in the OpenAPI schema: workers read them, so that FastAPI knows nothing of them."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from llmk.serve.protocol.base import Body

_PLACE = "#/components/schemas/{model}"


def body(schema: type[Body]) -> dict[str, Any]:
    """What a route passes as ``openapi_extra`` whose body is a ``schema``."""
    content = {"application/json": {"schema": {"$ref": _PLACE.format(model=schema.__name__)}}}
    return {"requestBody": {"required": True, "content": content}}


def describe(app: FastAPI, *schemas: type[Body]) -> None:
    """Has the OpenAPI schema of ``app`` tell of ``schemas``."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(title=app.title, version=app.version, routes=app.routes)
            _, found = models_json_schema([(schema, "validation") for schema in schemas], ref_template=_PLACE)
            made.setdefault("components", {}).setdefault("schemas", {}).update(found["$defs"])
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]

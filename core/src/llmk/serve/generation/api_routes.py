"""Routes of plugins, as the front end and the workers need them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import llmk
from llmk.api import ApiRoute, LlmkError, RequestError, RouteSpec, ServedModelInfo, TranslatedRequest
from llmk.kernel.loader import load_object
from llmk.serve.generation.parsing import Dialect
from llmk.serve.generation.pooling_jobs import capabilities_of

if TYPE_CHECKING:
    from llmk.kernel.registry import Registry
    from llmk.planning.boot import Boot

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PluginRoute:
    """A route of a plugin, and the object that converts its requests and responses."""

    spec: RouteSpec
    api: ApiRoute


def load_routes(registry: Registry) -> dict[str, PluginRoute]:
    """The routes of all plugins by id. One that can't be loaded is left out, with a warning."""
    routes: dict[str, PluginRoute] = {}
    for found in registry.of(RouteSpec, "route"):
        spec = found.spec
        try:
            create = load_object(spec.implementation, plugin=found.plugin, kind="route", id=spec.id)
            routes[spec.id] = PluginRoute(spec, create())
        except LlmkError as error:
            logger.warning("%s %s is not served: %s", spec.method, spec.path, error)
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            logger.warning("%s %s is not served: %s of %s: %s", spec.method, spec.path, spec.id, found.plugin, what)
    return routes


def translated(route: PluginRoute, body: Any, headers: Mapping[str, str]) -> TranslatedRequest:
    """The request in terms of llmk's own routes. Raises :class:`~llmk.api.RequestError`.

    An exception of the plugin that is not one of llmk's is an internal error, which names the plugin's route.
    """
    if route.spec.method == "POST" and not isinstance(body, dict):
        raise RequestError(f"the body is a JSON object, not {type(body).__name__}")
    made = route.api.translate(body, headers)
    if not isinstance(made, TranslatedRequest):
        raise TypeError(f"{route.spec.id} translated a request to {type(made).__name__}, not TranslatedRequest")
    return made


def model_info(boot: Boot, name: str, adapters: tuple[str, ...], dialect: Dialect, *, created: int) -> ServedModelInfo:
    """What plugins' routes get to know of the model."""
    checkpoint = boot.checkpoint
    capabilities = capabilities_of(boot.pooling)
    if dialect.tools is not None:
        capabilities.append("tools")
    if dialect.reasoning is not None:
        capabilities.append("thinking")
    return ServedModelInfo(
        name=name,
        adapters=adapters,
        created=created,
        version=llmk.__version__,
        max_model_len=boot.facts.max_model_len,
        chat_template=checkpoint.chat_template or "",
        capabilities=capabilities,
        config=checkpoint.config,
        num_bytes=checkpoint.weight_bytes,
    )

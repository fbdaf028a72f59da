"""``llmk config``: prints the merged configuration with the origin of each value, or its schema."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from llmk.api import LlmkError, ModelFacts, SelectionError
from llmk.cli.output import say
from llmk.cli.terminal import width_of
from llmk.config import Config, Origin, Settings, flags
from llmk.config.schema_tree import join, leaves
from llmk.kernel.registry import Registry
from llmk.planning.boot import apply_defaults
from llmk.planning.choices.checkpoints import choose_checkpoint
from llmk.planning.choices.models import choose_model, describe_model
from llmk.planning.choices.platforms import choose_platform
from llmk.planning.pooling import decoder_of, read_pooling
from llmk.planning.tables import render_rows, wrapped

SECRETS = frozenset({"server.api_keys", "server.admin_keys", "tenants.database"})
"""Values that are never printed."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser("config", help="show the configuration and the origin of each value")
    actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)
    show = actions.add_parser("show", help="print every value")
    show.add_argument("--origin", action="store_true", help="also print the origin of each value")
    show.add_argument("--json", action="store_true", help="print JSON")
    flags.add_flags(show, tuple(name for name in Config.model_fields if name != "plugin"))
    schema = actions.add_parser("schema", help="print every key with its type, default and meaning")
    schema.add_argument("--json", action="store_true", help="print a JSON Schema")


def run(args: argparse.Namespace) -> int:
    """Prints the configuration or its schema. Plugins' defaults are included if a platform is usable on this
    machine."""
    width = width_of(sys.stdout)
    if args.action == "schema":
        print(json.dumps(Config.model_json_schema(), indent=2) if args.json else render_schema(width))
        return 0
    settings = flags.load_settings(args)
    settings = _with_plugins(settings)
    print(render_json(settings) if args.json else render_settings(settings, origin=args.origin, width=width))
    return 0


def _with_plugins(settings: Settings) -> Settings:
    """Adds plugins' defaults for this machine and validates plugins' sections, if a platform is usable."""
    registry = Registry.discover(settings.config.plugins)
    try:
        platform, facts = choose_platform(registry, settings.config)
    except SelectionError as error:
        say(f"plugins' defaults are not shown: {error.message}")
        return settings
    return apply_defaults(settings, registry, platform, facts, _model_facts(registry, settings))


def _model_facts(registry: Registry, settings: Settings) -> ModelFacts | None:
    """The facts of the configured model, on which plugins' defaults depend; ``None`` if it can't be served."""
    try:
        checkpoint = choose_checkpoint(registry, settings.config, outline=True)
        pooling = read_pooling(checkpoint, settings.config.model.pooling)
        checkpoint, pools_only = decoder_of(checkpoint), pooling is not None and not pooling.generates
        model = choose_model(registry, settings.config, checkpoint, with_tree=pools_only)
        return describe_model(model, checkpoint, pooling=pooling, ranks=settings.config.parallel.tensor)
    except LlmkError as error:
        say(f"plugins' defaults for a model are not shown: {error.message}")
        return None


def render_settings(settings: Settings, *, origin: bool, width: int = 0) -> str:
    """One line per value."""
    rows = [(path, json.dumps(_shown(path, value)), str(who)) for path, value, who in settings.rows()]
    if origin:
        return render_rows(("key", "value", "set by"), rows, width)
    return "\n".join(wrapped(f"{path} = {value}", width) for path, value, _ in rows)


def render_json(settings: Settings) -> str:
    """Values and origins by path."""
    values = {path: _entry(path, value, who) for path, value, who in settings.rows()}
    return json.dumps(values, indent=2)


def render_schema(width: int = 0) -> str:
    """A table of all keys."""
    rows = [
        (
            join(path),
            " | ".join(leaf.choices) or _type_name(leaf.annotation),
            json.dumps(leaf.default),
            leaf.description,
        )
        for path, leaf in leaves().items()
    ]
    return render_rows(("key", "type", "default", "meaning"), rows, width)


def _entry(path: str, value: Any, who: Origin) -> dict[str, Any]:
    return {"value": _shown(path, value), "source": who.source, "detail": who.detail}


def _shown(path: str, value: Any) -> Any:
    return "(hidden)" if path in SECRETS and value else value


def _type_name(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")

"""The section of a plugin's configuration, as a user may write it, and as what the plugin makes gets it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmk.api import ConfigError
from llmk.config import load
from llmk_testing.bench import Bench


def options_of(spec_id: str, bench: Bench, section: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options of ``[plugin.NAME]``, validated by the plugin's schema. Raises ConfigError as at startup."""
    name = spec_id.partition(".")[0]
    schemas = {plugin.name: schema for plugin, schema in bench.registry.call("llmk_config_schema", type)}
    settings = load({f"plugin.{name}.{key}": value for key, value in section.items()}, environ={})
    found: Mapping[str, Any] = settings.with_plugin_schemas({name: schemas.get(name)}).config.plugin.get(name, {})
    return found


def check_unknown(spec_id: str, bench: Bench) -> None:
    """Raises ``AssertionError`` if an option that there isn't is accepted."""
    try:
        options_of(spec_id, bench, {"no_such_option": 1})
    except ConfigError as error:
        name, said = spec_id.partition(".")[0], str(error)
        assert "no_such_option" in said or f"plugin {name!r} takes no configuration" in said, said
    else:
        raise AssertionError("[plugin] no_such_option = 1 is accepted silently: a user's typo would have no effect")

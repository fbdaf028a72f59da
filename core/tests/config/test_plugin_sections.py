"""``[plugin.NAME]``: read before plugins are known, validated by the plugin's own schema once they are."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel

from llmk.api import ConfigError, Default
from llmk.config import Settings, load


class Acme(BaseModel):
    """A plugin's section."""

    mode: Literal["fast", "exact"] = "exact"
    cores: tuple[int, ...] = ()
    level: int = 1


SCHEMAS: dict[str, type[BaseModel] | None] = {"my-acme": Acme, "plain": None}


def load_text(folder: Path, text: str, **environ: str) -> Settings:
    (folder / "llmk.toml").write_text(text)
    return load(environ=environ, cwd=folder)


def test_section_is_validated_and_filled_in(tmp_path: Path) -> None:
    settings = load_text(tmp_path, "[plugin.my-acme]\nmode = 'fast'\n")
    whole = settings.with_plugin_schemas(SCHEMAS)
    assert whole.config.plugin == {"my-acme": {"mode": "fast", "cores": (), "level": 1}}
    assert whole.origin("plugin.my-acme.mode").detail == "llmk.toml:2"
    assert whole.origin("plugin.my-acme.level").source == "default"


def test_section_of_a_plugin_that_is_not_configured_has_its_defaults(tmp_path: Path) -> None:
    settings = load(environ={}, cwd=tmp_path).with_plugin_schemas(SCHEMAS)
    assert settings.config.plugin["my-acme"]["mode"] == "exact"


def test_text_from_the_environment_is_read_by_the_schema(tmp_path: Path) -> None:
    environ = {"LLMK__PLUGIN__MY_ACME__CORES": "3,4", "LLMK__PLUGIN__MY_ACME__LEVEL": "7"}
    settings = load(environ=environ, cwd=tmp_path).with_plugin_schemas(SCHEMAS)
    assert settings.config.plugin["my-acme"] == {"mode": "exact", "cores": (3, 4), "level": 7}


def test_sources_may_spell_the_name_differently(tmp_path: Path) -> None:
    settings = load_text(tmp_path, "[plugin.My-Acme]\nmode = 'fast'\n", LLMK__PLUGIN__MY_ACME__LEVEL="7")
    whole = settings.with_plugin_schemas(SCHEMAS)
    assert whole.config.plugin["my-acme"] == {"mode": "fast", "cores": (), "level": 7}
    assert whole.origin("plugin.my-acme.mode").source == "file"
    assert whole.origin("plugin.my-acme.level").source == "environment"


def test_a_plugins_own_default_lies_below_the_users_value(tmp_path: Path) -> None:
    settings = load_text(tmp_path, "plugin.my-acme.level = 9\n")
    advice = [Default("plugin.my-acme.level", 5, "why"), Default("plugin.my-acme.mode", "fast", "quick here")]
    whole = settings.with_defaults([("my-acme", default) for default in advice]).with_plugin_schemas(SCHEMAS)
    assert whole.config.plugin["my-acme"] == {"mode": "fast", "cores": (), "level": 9}
    assert whole.origin("plugin.my-acme.mode").detail == "my-acme: quick here"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[plugin.my-acme]\nmode = 'slow'", ("plugin.my-acme.mode", "'slow'", "llmk.toml:2", "'fast' or 'exact'")),
        ("[plugin.my-acme]\n\nmood = 1", ("plugin.my-acme.mood", "llmk.toml:3", "known keys are mode, cores, level")),
        ("[plugin.plain]\nx = 1", ("'plain' takes no configuration", "llmk.toml:2")),
        ("[plugin.absent]\nx = 1", ("no plugin of that name is installed", "llmk.toml:2", "my-acme, plain")),
    ],
)
def test_bad_section_names_path_value_and_origin(tmp_path: Path, text: str, parts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_text(tmp_path, text).with_plugin_schemas(SCHEMAS)
    for part in parts:
        assert part in str(caught.value)


def test_a_default_for_an_unknown_path_names_the_plugin(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cache\.colour.*plugin acme: pretty"):
        load(environ={}, cwd=tmp_path).with_defaults([("acme", Default("cache.colour", "red", "pretty"))])
    with pytest.raises(ConfigError, match=r"cache\.block_size = 'red'.*plugin acme: pretty"):
        load(environ={}, cwd=tmp_path).with_defaults([("acme", Default("cache.block_size", "red", "pretty"))])

"""Flags made from the schema."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from llmk.config import Config, load
from llmk.config.flags import ALIASES, add_flags, add_model, collect
from llmk.config.schema_tree import join, leaves

SECTIONS = tuple(name for name in Config.model_fields if name != "plugin")


@pytest.fixture
def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="llmk", exit_on_error=False)
    add_model(parser)
    add_flags(parser, SECTIONS)
    return parser


def parse(parser: argparse.ArgumentParser, line: str) -> dict[str, Any]:
    return collect(parser.parse_args(line.split()))


def test_nothing_given_sets_nothing(parser: argparse.ArgumentParser) -> None:
    assert parse(parser, "") == {}


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("--cache.block-size 8", {"cache.block_size": "8"}),
        ("--cache.block_size=8", {"cache.block_size": "8"}),
        ("some/folder", {"model.path": "some/folder"}),
        ("--model.path some/folder", {"model.path": "some/folder"}),
        ("--port 1 --host ::", {"server.port": "1", "server.host": "::"}),
        ("--api-key a --api-key b,c", {"server.api_keys": ["a", "b,c"]}),
        ("--strict", {"engine.strict": True}),
        ("--no-scheduler.chunked-prefill", {"scheduler.chunked_prefill": False}),
        ("--dtype float32", {"model.dtype": "float32"}),
        ("--set plugin.my-acme.level=3 --set select.op.use.rope=a.b=c", {
            "plugin.my-acme.level": "3",
            "select.op.use.rope": "a.b=c",
        }),
    ],
)  # fmt: skip
def test_flag_sets_its_path(parser: argparse.ArgumentParser, line: str, values: dict[str, Any]) -> None:
    assert parse(parser, line) == values


def test_what_is_collected_can_be_loaded(parser: argparse.ArgumentParser) -> None:
    line = "folder --port 9 --api-key a --api-key b --no-cache.prefix-caching --set plugin.acme.level=3"
    config = load(parse(parser, line), environ={}).config
    assert (config.model.path, config.server.port, config.server.api_keys) == ("folder", 9, ("a", "b"))
    assert config.cache.prefix_caching is False
    assert config.plugin == {"acme": {"level": "3"}}


def test_choices_are_checked_at_once(parser: argparse.ArgumentParser) -> None:
    with pytest.raises(argparse.ArgumentError, match="int3"):
        parser.parse_args(["--dtype", "int3"])


def test_set_needs_a_path_and_a_value(parser: argparse.ArgumentParser) -> None:
    with pytest.raises(argparse.ArgumentError, match="PATH=VALUE"):
        parser.parse_args(["--set", "cache"])


def test_every_value_has_a_flag_with_help(parser: argparse.ArgumentParser) -> None:
    text = " ".join(parser.format_help().split())
    for path, leaf in leaves().items():
        if path[0] != "plugin":
            assert "--" + join(path).replace("_", "-") in text
            assert leaf.description, f"{join(path)} has no description"
    assert set(ALIASES) <= {join(path) for path in leaves()}

"""``llmk pull``: downloads a model by its name."""

from __future__ import annotations

import argparse

from llmk.api import ModelNotFound
from llmk.config import flags
from llmk.kernel.first_party import how_to_install
from llmk.kernel.registry import Registry
from llmk.planning.choices.sources import fetch_ahead, near_names


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser("pull", help="download a model by its name")
    parser.add_argument("model.path", metavar="MODEL", help="org/name[@revision], or org/name:FILE of GGUF files")
    flags.add_flags(parser, ("plugins",))


def run(args: argparse.Namespace) -> int:
    """Downloads what is not there yet, and prints where it is."""
    settings = flags.load_settings(args)
    name = settings.config.model.path
    found = fetch_ahead(settings)
    if found is None:
        near = near_names(Registry.discover(settings.config.plugins), settings.config, name, paths=False)
        hint = how_to_install("hub") or "name it as its source does: org/name"
        hint = f"did you mean {' or '.join(near)}?" if near else hint
        raise ModelNotFound(f"no installed source of models knows the name {name!r}", hint=hint)
    print(found.path)
    return 0

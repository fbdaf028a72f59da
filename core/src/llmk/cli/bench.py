"""``llmk bench``: measures a model on this machine."""

from __future__ import annotations

import argparse
from importlib import import_module

KINDS = {"trace": "record what host and device do in each step, for Perfetto"}
"""Every subcommand, by the suffix of the module that has it, and its line of help."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser("bench", help="measure a model on this machine")
    kinds = parser.add_subparsers(metavar="KIND", dest="kind", required=True)
    for name, help in KINDS.items():
        import_module(f"llmk.cli.bench_{name}").add_arguments(kinds.add_parser(name, help=help))


def run(args: argparse.Namespace) -> int:
    """Runs one of them."""
    code: int = import_module(f"llmk.cli.bench_{args.kind}").run(args)
    return code

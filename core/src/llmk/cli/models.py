"""``llmk models``: lists the models that sources have on this machine, and which of them can be served."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from llmk.api import LlmkError, ModelSourceSpec, StoredModel
from llmk.cli.terminal import width_of
from llmk.config import flags
from llmk.kernel.registry import Registry
from llmk.planning.boot import boot
from llmk.planning.choices.checkpoints import choose_checkpoint
from llmk.planning.choices.sources import make_source
from llmk.planning.tables import render_rows

SECTIONS = ("platform", "plugins")
_SHOWN_REVISION = 12


@dataclass(frozen=True, slots=True)
class Row:
    """A model, and why it can't be served; ``problem`` is empty where it can."""

    name: str
    revision: str
    source: str
    path: str
    num_bytes: int
    architecture: str
    problem: str


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser("models", help="list downloaded models, and which of them can be served")
    parser.add_argument("--json", action="store_true", help="print JSON")
    flags.add_flags(parser, SECTIONS)


def run(args: argparse.Namespace) -> int:
    """Prints a line per model. Each is planned as ``llmk explain`` plans it."""
    rows = list(_rows(args))
    if args.json:
        print(json.dumps([asdict(row) | {"can_be_served": not row.problem} for row in rows], indent=2))
        return 0
    if not rows:
        print("no model is downloaded; llmk pull org/name downloads one")
        return 0
    shown = [
        (
            row.name,
            row.revision[:_SHOWN_REVISION],
            f"{row.num_bytes / 1e9:.2f} GB",
            row.architecture or "unknown",
            row.problem or "can be served",
        )
        for row in rows
    ]
    print(render_rows(("model", "revision", "size", "architecture", "state"), shown, width_of(sys.stdout)))
    return 0


def _rows(args: argparse.Namespace) -> Iterator[Row]:
    settings = flags.load_settings(args)
    registry = Registry.discover(settings.config.plugins)
    for each in registry.of(ModelSourceSpec):
        for stored in make_source(each, settings.config).stored():
            architecture, problem = _examine(registry, args, stored)
            where = (each.spec.id, str(stored.path), stored.num_bytes)
            yield Row(stored.reference, stored.revision, *where, architecture, problem)


def _examine(registry: Registry, args: argparse.Namespace, stored: StoredModel) -> tuple[str, str]:
    """The model's architecture, as far as it is known, and why it can't be served."""
    settings = flags.load_settings(argparse.Namespace(**vars(args), **{"model.path": str(stored.path)}))
    architecture = ""
    try:
        architecture = choose_checkpoint(registry, settings.config).architecture
        if not stored.is_complete:
            return architecture, f"not complete: llmk pull {stored.reference}"
        boot(settings, verify=False)
    except LlmkError as error:
        return architecture, error.message.splitlines()[0]
    return architecture, ""

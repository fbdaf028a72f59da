"""``llmk plugins``: lists every plugin with its wheel, its state, and the reasons for it."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from llmk.cli.terminal import width_of
from llmk.config import flags
from llmk.kernel.discovery import Plugin
from llmk.kernel.registry import Registry
from llmk.planning.tables import render_rows, wrapped


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command. Its actions are provided by plugins (:mod:`llmk.cli.commands`)."""
    parser = subparsers.add_parser("plugins", help="list installed plugins and the state of each")
    parser.add_argument("--json", action="store_true", help="print JSON")
    flags.add_flags(parser, ("plugins",))


def run(args: argparse.Namespace) -> int:
    """Prints the list. Broken plugins are listed too, and don't change the exit code."""
    registry = Registry.discover(flags.load_settings(args).config.plugins)
    if args.json:
        print(json.dumps([as_dict(plugin) for plugin in registry.plugins], indent=2))
    else:
        print(render_plugins(registry, width_of(sys.stdout)))
    return 0


def render_plugins(registry: Registry, width: int = 0) -> str:
    """A table of the plugins; below it, the reasons of plugins that are not used, and the refused specs."""
    rows = [(p.name, f"{p.distribution} {p.version}", p.state, _hooks(p)) for p in registry.plugins]
    lines = [render_rows(("plugin", "wheel", "state", "hooks"), rows, width)]
    lines += [f"{p.name} ({p.wheel}): {reason}" for p in registry.plugins for reason in p.reasons]
    lines += [f"{r.spec.id} ({r.plugin.wheel}): {reason}" for r, reason in registry.refused]
    return "\n".join([lines[0], *(wrapped(line, width) for line in lines[1:])])


def as_dict(plugin: Plugin) -> dict[str, Any]:
    """Plain data of one plugin."""
    reasons = [{"code": r.code, "wanted": r.wanted, "found": r.found, "hint": r.hint} for r in plugin.reasons]
    return {
        "name": plugin.name,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "state": plugin.state,
        "reasons": reasons,
        "hooks": list(plugin.hooks),
        "traceback": plugin.traceback,
    }


def _hooks(plugin: Plugin) -> str:
    return ", ".join(hook.removeprefix("llmk_") for hook in plugin.hooks)

"""``llmk explain``: prints the plan for a model, on this machine or another, with all reasons."""

from __future__ import annotations

import argparse
import json

from llmk.api import Plan
from llmk.config import flags
from llmk.engine.scheduling.async_scheduling import OTHER_PROCESSES, choose_depth, why_asynchronous
from llmk.planning.adapters import render_adapters
from llmk.planning.boot import Boot, advised, boot
from llmk.planning.choices.grammars import choose_grammar
from llmk.planning.choices.parsers import choose_parser
from llmk.planning.choices.speculation import render_speculation
from llmk.planning.memory import forecast
from llmk.planning.report import render_layouts, render_table
from llmk.planning.shadows import render_shadows, shadowed

SECTIONS = ("model", "platform", "parallel", "select", "plugins", "engine", "scheduler", "speculation", "cache")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser("explain", help="show which kernels would be chosen for a model, and why")
    flags.add_model(parser)
    on = "plan for another machine, by its architecture or a word of its device's name"
    parser.add_argument("--on", metavar="PLATFORM/DEVICE", help=on)
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    parser.add_argument("--verbose", action="store_true", help="also show the rejected candidates, with all reasons")
    flags.add_flags(parser, SECTIONS)


def run(args: argparse.Namespace) -> int:
    """Prints the plan. Imports no implementation, so that neither torch nor the device is needed."""
    booted = shadowed(boot(flags.load_settings(args), on=args.on, verify=False, outline=True))
    if args.json or args.verbose:
        booted = advised(booted)
    memory, parsers = forecast(booted), _parsers(booted)
    if args.json:
        facts = memory and memory.to_dict()
        print(json.dumps(booted.plan.to_dict() | {"memory": facts, "parsers": parsers}, indent=2))
        return 0
    print(render_table(booted.plan))
    if layouts := render_layouts(booted.plan):
        print(layouts)
    if booted.plan.shadows:
        print(render_shadows(booted))
    if speculation := render_speculation(booted):
        print(speculation)
    if adapters := render_adapters(booted):
        print(adapters)
    for kind, parser in parsers.items():
        print(f"{kind} parser: {parser['id'] or 'none'} ({parser['why']})")
    print(f"grammars: {_grammars(booted)}")
    print(f"memory of a device: {memory or 'unknown'}")
    several = booted.plan.num_ranks > 1
    asynchronous = OTHER_PROCESSES if several else why_asynchronous(booted.platform_facts)
    wanted = booted.settings.config.engine.steps_in_flight
    print("steps in flight: {} ({})".format(*choose_depth(wanted, asynchronous, booted.plan.pipeline)))
    if args.verbose:
        print(render_rejected(booted.plan))
    return 0


def _parsers(booted: Boot) -> dict[str, dict[str, str | None]]:
    """The parser of each kind for the checkpoint's dialect, and why, as ``/v1/plan`` shows them."""
    found = {}
    for kind in ("reasoning", "tool"):
        chosen, why = choose_parser(booted.registry, kind, booted.settings.config, booted.checkpoint)
        found[kind] = {"id": chosen.spec.id if chosen else None, "why": why}
    return found


def _grammars(booted: Boot) -> str:
    found, why = choose_grammar(booted.registry, booted.settings.config)
    return (
        f"{', '.join(found.spec.kinds)} by {found.spec.id} of {found.plugin.wheel} ({why})"
        if found
        else f"none ({why})"
    )


def render_rejected(plan: Plan) -> str:
    """The rejected candidates of each site, with all reasons."""
    lines = ["", "rejected"]
    for choice in plan.all_choices():
        if choice.rejected:
            lines.append(f"  {choice.kind} {choice.site}")
        for rejection in choice.rejected:
            lines.append(f"    {rejection.id} ({rejection.distribution})")
            lines += [f"      - {reason}" for reason in rejection.reasons]
    return "\n".join(lines) if len(lines) > 2 else "\nno candidate was rejected"

"""``llmk explain``: prints the plan for a model, on this machine or another, with all reasons."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from llmk.api import Plan
from llmk.cli.terminal import width_of
from llmk.config import flags
from llmk.engine.scheduling.async_scheduling import OTHER_PROCESSES, choose_depth, why_asynchronous
from llmk.planning.adapters import render_adapters
from llmk.planning.boot import Boot, advised, boot
from llmk.planning.choices.grammars import choose_grammar
from llmk.planning.choices.launchers import launcher_of
from llmk.planning.choices.parsers import choose_parser
from llmk.planning.choices.speculation import render_speculation
from llmk.planning.memory import MemoryPlan, forecast
from llmk.planning.report import render_layouts, render_table
from llmk.planning.shadows import render_shadows, shadowed
from llmk.planning.spreads import TARGETS, Machines, Spread, recommended, render_spreads, spreads
from llmk.planning.tables import wrapped

SECTIONS = (
    *("model", "platform", "parallel", "replicas", "select", "plugins", "engine", "scheduler", "speculation"),
    "cache",
)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser("explain", help="show which kernels would be chosen for a model, and why")
    flags.add_model(parser)
    on = "plan for another machine, by its architecture or words of its device's name"
    parser.add_argument("--on", metavar="PLATFORM/DEVICE", help=on)
    nodes = "show how the model could be spread over so many machines, of so many devices each"
    parser.add_argument("--nodes", metavar="N[xDEVICES]", help=nodes)
    parser.add_argument("--target", choices=TARGETS, default=TARGETS[0], help="what --nodes recommends a spread for")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    parser.add_argument("--verbose", action="store_true", help="also show the rejected candidates, with all reasons")
    flags.add_flags(parser, SECTIONS)


def run(args: argparse.Namespace) -> int:
    """Prints the plan. Imports no implementation, so that neither torch nor the device is needed."""
    settings = flags.load_settings(args)
    machines = Machines.of(args.nodes, settings, args.on) if args.nodes else None
    total = machines.total if machines else 0
    booted = shadowed(boot(settings, on=args.on, verify=False, outline=True, num_devices=total))
    if args.json or args.verbose:
        booted = advised(booted)
    memory, parsers = forecast(booted), _parsers(booted)
    found = list(spreads(settings, machines, args.on)) if machines else []
    chosen = recommended(found, args.target, booted)
    if args.json:
        data = booted.plan.to_dict() | {"memory": memory and memory.to_dict(), "parsers": parsers}
        data |= _spread_data(found, chosen) if machines else {}
        print(json.dumps(data, indent=2))
        return 0
    print(render(booted, memory, parsers, width_of(sys.stdout)))
    if machines:
        print(render_spreads(booted, machines, found, *chosen, width_of(sys.stdout)))
    if args.verbose:
        print(wrapped(render_rejected(booted.plan), width_of(sys.stdout)))
    return 0


def _spread_data(found: Sequence[Spread], chosen: tuple[Spread | None, str]) -> dict[str, Any]:
    best, why = chosen
    recommendation = {"tensor": best.tensor, "pipeline": best.pipeline} if best else None
    return {"spreads": [each.to_dict() for each in found], "recommended": recommendation, "recommended_why": why}


def render(booted: Boot, memory: MemoryPlan | None, parsers: dict[str, dict[str, str | None]], width: int) -> str:
    """Tables of the plan, and a line for each other choice."""
    plan = booted.plan
    tables = [render_table(plan, width), render_layouts(plan, width)]
    tables += [render_shadows(booted, width)] if plan.shadows else []
    lines = [render_speculation(booted), render_adapters(booted)]
    lines += [f"{kind} parser: {parser['id'] or 'none'} ({parser['why']})" for kind, parser in parsers.items()]
    asynchronous = (
        OTHER_PROCESSES if plan.num_ranks > 1 or launcher_of(plan) else why_asynchronous(booted.platform_facts)
    )
    wanted = booted.settings.config.engine.steps_in_flight
    lines += [
        f"grammars: {_grammars(booted)}",
        f"memory of a device: {memory or 'unknown'}",
        "steps in flight: {} ({})".format(*choose_depth(wanted, asynchronous, plan.pipeline)),
    ]
    return "\n".join(filter(None, [*tables, *(wrapped(line, width) for line in lines)]))


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

"""``llmk doctor``: reports what is installed, what works on this machine, what is missing and how to get it."""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import importlib_metadata as metadata

from llmk.api import LlmkError, ModelSpec, ParserSpec, PlatformFacts
from llmk.cli.terminal import width_of
from llmk.config import Settings, flags
from llmk.kernel.registry import Registry
from llmk.planning.boot import boot
from llmk.planning.checkpoint.folder import read_checkpoint
from llmk.planning.choices.models import MODELS_WHEEL, find_checkpoint
from llmk.planning.choices.platforms import counted, probe_platforms
from llmk.planning.report import could_serve, not_built, with_gaps
from llmk.planning.tables import wrapped

GOOD, NOTE, BAD = "ok", "note", "problem"
SECTIONS = ("model", "platform", "select", "plugins", "engine")


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. ``state`` is ok, note or problem; ``fix`` is what to do about it."""

    state: str
    text: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.state:<8} {self.text}" + (f"\n{'':<8}   -> {self.fix}" if self.fix else "")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser("doctor", help="check this installation and report what is missing")
    flags.add_model(parser)
    flags.add_flags(parser, SECTIONS)


def run(args: argparse.Namespace) -> int:
    """Prints all findings and a verdict; returns 1 if there is a problem."""
    settings = flags.load_settings(args)
    findings = list(examine(settings))
    width = width_of(sys.stdout)
    print("\n".join(wrapped(str(finding), width, indent=9) for finding in findings))
    problems = sum(finding.state == BAD for finding in findings)
    many = "problem" if problems == 1 else "problems"
    print(f"\nverdict: {f'{problems} {many}, see above' if problems else 'ready to serve'}")
    return 1 if problems else 0


def examine(settings: Settings) -> Iterator[Finding]:
    """Runs all checks, libraries first. Imports nothing heavy and initialises no device."""
    registry = Registry.discover(settings.config.plugins)
    yield from _libraries()
    yield from _plugins(registry)
    yield from _platforms(settings, registry)
    yield from _models(registry)
    yield from _parsers(registry)
    yield from _plan(settings, registry)


def _libraries() -> Iterator[Finding]:
    yield Finding(GOOD, f"Python {platform.python_version()}, llmk-core {metadata.version('llmk-core')}")
    for name in ("torch", "transformers"):
        try:
            yield Finding(GOOD, f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            yield Finding(BAD, f"{name} is not installed", f"pip install {name}")


def _plugins(registry: Registry) -> Iterator[Finding]:
    for plugin in registry.plugins:
        text = f"plugin {plugin.name} ({plugin.wheel}) is {plugin.state}"
        if plugin.is_usable:
            yield Finding(GOOD, text)
        else:
            reasons = "; ".join(str(reason) for reason in plugin.reasons)
            yield Finding(NOTE if plugin.state == "blocked" else BAD, f"{text}: {reasons}")
    for registered, reason in registry.refused:
        yield Finding(NOTE, f"{registered.spec.id} ({registered.plugin.wheel}) is not used: {reason}")


def _platforms(settings: Settings, registry: Registry) -> Iterator[Finding]:
    usable = False
    for registered, probe in probe_platforms(registry, options=settings.config.plugin):
        name = f"platform {registered.spec.name} ({registered.plugin.wheel})"
        if probe.verdict and probe.facts is not None:
            usable = True
            yield Finding(GOOD, f"{name} is usable: {_devices(probe.facts)}")
            if probe.unused:
                fix = "make only those visible that are to serve"
                yield Finding(NOTE, f"{name} runs on one kind of device; not used: {counted(probe.unused)}", fix)
        else:
            reasons = "; ".join(str(reason) for reason in probe.verdict.reasons)
            yield Finding(NOTE, f"{name} is not usable here: {reasons}")
    if not usable:
        fix = "pip install llmk-backends-cpu, which runs anywhere, or the llmk-backends wheel of your accelerator"
        yield Finding(BAD, "no platform is usable here, so nothing can be served", fix)


def _devices(facts: PlatformFacts) -> str:
    """Architecture, number, name and memory of a platform's devices."""
    several = facts.num_devices > 1
    count, each = (f"{facts.num_devices} x ", " each") if several else ("", "")
    memory = f", {facts.memory_bytes / 2**30:.1f} GiB{each}" if facts.memory_bytes else ""
    return f"{facts.label}, {count}{facts.device_name or 'unnamed device'}{memory}"


def _models(registry: Registry) -> Iterator[Finding]:
    if not registry.of(ModelSpec):
        yield Finding(BAD, "no model family is registered", f"pip install {MODELS_WHEEL}")
        return
    named = sorted({name for model in registry.of(ModelSpec) for name in model.spec.architectures} - {"*"})
    rest = [model.spec.id for model in registry.of(ModelSpec) if "*" in model.spec.architectures]
    yield Finding(GOOD, f"architectures: {', '.join(named)}{f', and others by {rest[0]}' if rest else ''}")
    try:
        demo = read_checkpoint(find_checkpoint(registry, ""))
    except LlmkError as error:
        yield Finding(NOTE, f"demo model: {error.message}", error.hint)
        return
    missing = [file.name for file in demo.weight_files if not file.is_there] if demo.weight_files else ["weights"]
    if missing:
        yield Finding(BAD, f"demo model at {demo.path} lacks {', '.join(missing)}", f"reinstall {MODELS_WHEEL}")
    else:
        yield Finding(GOOD, f"demo model: {demo.architecture}, {demo.weight_bytes / 2**20:.1f} MiB")


def _parsers(registry: Registry) -> Iterator[Finding]:
    names = sorted({registered.spec.name for registered in registry.of(ParserSpec)})
    if names:
        yield Finding(GOOD, f"parsers: {', '.join(names)}")
    else:
        yield Finding(NOTE, "no reasoning or tool parser is installed", "pip install llmk-parsers")


def _plan(settings: Settings, registry: Registry) -> Iterator[Finding]:
    """Plans the model, or the demo model, with this configuration; an error here would stop the server too."""
    if not registry.platforms or not registry.of(ModelSpec):
        return
    name = settings.config.model.path or "the demo model"
    try:
        plan = boot(settings, verify=False, outline=True).plan
    except LlmkError as error:
        fix = error.hint if not error.reasons else f"llmk explain shows every reason; {error.hint}"
        yield Finding(BAD, f"{name} can't be planned: {error.message}", fix.rstrip("; "))
        return
    yield Finding(GOOD, f"{name} can be planned: {plan.architecture} on {plan.platform.label} in {plan.dtype}")
    quarantined = registry.warnings
    yield from (Finding(NOTE, warning) for warning in plan.warnings if warning not in quarantined)
    yield from (Finding(NOTE, f"left out: {line}") for line in with_gaps(plan))
    yield from (Finding(NOTE, f"could also serve: {line}") for line in could_serve(plan))
    yield from (Finding(NOTE, f"not built: {line}") for line in not_built(plan))

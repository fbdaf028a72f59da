"""The command ``llmk verify``."""

from __future__ import annotations

import argparse
import json
import os
import platform as host
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import importlib_metadata as metadata

from llmk.api import ConfigError, SelectionError

if TYPE_CHECKING:
    from llmk.api import PlatformFacts
    from llmk_testing.case import Result
    from llmk_testing.verify.record import Record


class VerifyCommand:
    """``llmk verify``."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        parser.add_argument(
            "--platform", default="", metavar="NAME", help="the platform to verify (default: the best one here)"
        )
        parser.add_argument("--thorough", action="store_true", help="every kernel and more shapes; may take an hour")
        parser.add_argument(
            "--json", type=Path, metavar="FILE", help="where to write the result (default: named by chip)"
        )
        parser.add_argument("--by", default="", metavar="NAME", help="who verified it, for the table in the docs")
        parser.add_argument("--seed", type=int, default=0, help="seed of random inputs")
        parser.add_argument(
            "--timeout", type=float, default=600.0, metavar="SECONDS", help="for one part, or one case (%(default)g)"
        )

    def run(self, args: argparse.Namespace) -> int:
        """Verifies, prints what was found and where it was written; returns 1 if anything failed."""
        from llmk.config import load
        from llmk.kernel.registry import Registry
        from llmk.planning.boot import boot
        from llmk.planning.choices.platforms import choose_platform
        from llmk_testing.verify.conformance import check
        from llmk_testing.verify.tokens import demo_folder

        started = time.perf_counter()
        config = load({"platform.use": args.platform}).config
        registry = Registry.discover(config.plugins)
        registered, facts = choose_platform(registry, config)
        demo_folder()
        record = _record(args, facts, registered.plugin.wheel)
        file = args.json or Path(f"verified-{_file_name(facts)}.json")
        _check_writable(file)
        # That of the model, and float32, in which tokens must be the reference's.
        own = boot(load({"platform.use": facts.name}, environ={})).plan.dtype
        dtypes = [dtype for dtype in dict.fromkeys((own, "float32")) if dtype in (own, *facts.dtypes)]
        options = {"platform": facts.name, "thorough": args.thorough, "seed": args.seed, "dtypes": dtypes}
        _say(f"verifying {facts.label} ({facts.device_name or 'unnamed'}); this takes minutes")
        _measure(record, facts, options, args.timeout)
        given = {"thorough": args.thorough, "seed": args.seed, "timeout": args.timeout}
        record.parts["conformance"] = check(registered, facts, registry, **given, report=_show)
        record.seconds = round(time.perf_counter() - started, 1)
        file.write_text(json.dumps(record.as_dict(), indent=1) + "\n")
        _say("\r\x1b[K" if sys.stderr.isatty() else "", end="")
        print(record.render())
        print(f"{file} has all of it: please send it to the authors of llmk, for docs/verified/")
        return int(record.failed)


def _measure(record: Record, facts: PlatformFacts, options: dict[str, Any], timeout: float) -> None:
    """The device, then timings while nothing else of this command runs, then tokens. Raises SelectionError where the
    device can't be used."""
    from llmk_testing.verify.child import run_part
    from llmk_testing.verify.record import Part

    if facts.device_type:
        record.parts["device"] = run_part("device", options, timeout)
        if record.parts["device"].problems:
            raise SelectionError(
                f"{facts.label} can't be verified: {record.parts['device'].problems[0]}",
                hint="llmk doctor says what is usable here; --platform NAME takes another platform",
            )
    _say("timings: the machine's own speed, GEMMs, the demo model")
    if facts.device_type:
        record.parts["timings"] = run_part("timings", options, timeout)
    else:
        record.parts["timings"] = Part(notes=[f"torch can't use {facts.label}, so no roofline was measured"])
    _say("tokens: the demo model against its reference")
    record.parts["tokens"] = run_part("tokens", options, timeout)
    if busy := _load():
        record.parts["timings"].notes.append(f"the machine was busy ({busy}), so that timings are too long")


def _record(args: argparse.Namespace, facts: PlatformFacts, wheel: str) -> Record:
    from llmk_testing.verify.record import Record

    machine = {
        "device": facts.device_name,
        "arch": facts.arch,
        "devices": facts.num_devices,
        "memory_bytes": facts.memory_bytes,
        "features": sorted(facts.features),
        "processors": os.cpu_count(),
        "machine": host.machine(),
        "system": f"{host.system()} {host.release().partition('-')[0]}",
    }
    names = ("llmk-core", "llmk-models", "llmk-testing", "torch", "triton", "triton-xpu", "transformers")
    versions = {name: metadata.version(name) for name in names if _is_installed(name)}
    backend, _, version = wheel.partition(" ")
    versions |= {backend: version, "python": host.python_version()}
    return Record(facts.label, machine, versions, args.thorough, args.seed, args.by)


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _file_name(facts: PlatformFacts) -> str:
    words = f"{facts.label} {facts.device_name}".lower()
    return "-".join("".join(c if c.isalnum() else " " for c in words).split())


def _check_writable(file: Path) -> None:
    """Raises ConfigError now, rather than after minutes."""
    try:
        with file.open("a"):
            pass
        if not file.stat().st_size:
            file.unlink()
    except OSError as error:
        raise ConfigError(
            f"the result can't be written to {file}: {error.strerror}", hint="--json FILE names another file"
        ) from error


def _load() -> str:
    """What else runs here, where that is much; this command itself makes a load of one."""
    load, processors = os.getloadavg()[0], os.cpu_count() or 1
    return f"a load of {load:.1f} on {processors} processors" if load > processors + 1 else ""


def _show(result: Result) -> None:
    """Shows each case on one line of the terminal."""
    if sys.stderr.isatty():
        _say(f"\r\x1b[K{result.outcome} {result.spec}::{result.name}"[:150], end="\r")


def _say(text: str, end: str = "\n") -> None:
    print(text, file=sys.stderr, end=end, flush=True)

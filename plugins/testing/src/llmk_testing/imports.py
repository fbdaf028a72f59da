"""Watches the import of a distribution's modules, in a process of its own.

Run as ``python -m llmk_testing.imports``, with JSON from :class:`Imports` as its argument, it prints JSON.
"""

from __future__ import annotations

import json
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from importlib import import_module
from types import ModuleType
from typing import Any

import importlib_metadata as metadata
from packaging.utils import canonicalize_name

from llmk.api import ENTRY_POINT_GROUP, Host, PlatformSpec, PluginError, Probe
from llmk.api.errors import describe
from llmk.api.matching import evaluate
from llmk.kernel.contracts import kind_of
from llmk.kernel.interpreter import PYTHON
from llmk.kernel.loader import load_object
from llmk.kernel.registry import Registered, Registry
from llmk_testing.case import Skip

LOCATIONS = ("implementation", "prepare", "describe", "examples", "early_setup")
TIMEOUT = 300


class Imports:
    """The effects of importing a distribution's modules; determined at first access."""

    def __init__(self, distribution: str, registry: Registry) -> None:
        self.plugins = [plugin for plugin in registry.plugins if plugin.distribution == distribution]
        points = metadata.entry_points().select(group=ENTRY_POINT_GROUP)
        self.modules = sorted({p.module for p in points if p.dist and canonicalize_name(p.dist.name) == distribution})
        refused = [registered for registered, _ in registry.refused]
        self.specs: list[Registered[Any]] = [
            one for one in (*registry.of(object), *refused) if one.plugin.distribution == distribution
        ]

    @property
    def patches(self) -> list[str]:
        """Names of llmk that a module of the distribution overwrote, and which module did."""
        found: list[str] = self._found["patches"]
        return found

    def check(self, spec: Any, missing: str = "") -> str | None:
        """Raises AssertionError if an object that a spec names can't be imported or lacks attributes of its contract;
        ``Skip`` if it can't be imported but does not support this machine (``missing`` says why)."""
        errors: list[str] = [self._found["errors"][place] for place in _places(spec) if place in self._found["errors"]]
        if errors and isinstance(spec, PlatformSpec):
            answer = evaluate(spec.probe, Host(), Probe)
            missing = "; ".join(map(str, (answer.verdict if isinstance(answer, Probe) else answer).reasons))
        if errors and missing:
            raise Skip(f"{missing}; the import raised: {errors[0]}")
        assert not errors, "\n".join(errors)
        return None

    @cached_property
    def _found(self) -> dict[str, Any]:
        job = {
            "modules": self.modules,
            "places": {place: _kind(r, place) for r in self.specs for place in _places(r.spec)},
        }
        command = [*PYTHON, "-X", "faulthandler", "-m", __name__, json.dumps(job)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
        try:
            found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        except (ValueError, IndexError):
            tail = "\n".join(done.stderr.splitlines()[-12:])
            message = f"importing objects of {self.plugins[0].wheel} ended with {done.returncode}:\n{tail}"
            raise AssertionError(message) from None
        return found


def _kind(registered: Registered[Any], place: str) -> str:
    """The kind by which what a spec names is held against its contract; empty where there is none."""
    if place == getattr(registered.spec, "implementation", ""):
        return kind_of(registered.spec, registered.kind)
    return next((name for name in ("prepare", "describe") if place == getattr(registered.spec, name, "")), "")


def _places(spec: Any) -> list[str]:
    return [place for name in LOCATIONS if (place := getattr(spec, name, ""))]


def main() -> None:
    """Imports the objects that the job names, one by one, and prints the results."""
    job = json.loads(sys.argv[1])
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for module in pkgutil.walk_packages(import_module("llmk").__path__, "llmk."):
        with suppress(Exception):  # modules that need a missing package can't be patched either
            import_module(module.name)
    watch = Watch()
    errors: dict[str, str] = {}
    for module in job["modules"]:
        with suppress(BaseException):  # discovery has reported it
            import_module(module)
        watch.compare(module)
    for place, kind in job["places"].items():
        try:
            load_object(place, kind=kind)
        except PluginError as error:
            why = describe(error.__cause__) if error.__cause__ else "; ".join(map(str, error.reasons))
            errors[place] = f"{place}: {why}"
        watch.compare(place)
    print(json.dumps({"errors": errors, "patches": watch.patches}), file=out, flush=True)
    os._exit(0)  # even if the modules started threads


class Watch:
    """Detects assignments to attributes of llmk's modules, and of classes and containers at their top level."""

    def __init__(self) -> None:
        self.patches: list[str] = []
        self._seen = dict(_names())

    def compare(self, importing: str) -> None:
        """Compares with the last call, and attributes differences to the module ``importing``."""
        now = dict(_names())
        for name in sorted(self._seen.keys() | now.keys()):
            if self._seen.get(name) is not now.get(name):
                what = "deleted" if name not in now else "replaced" if name in self._seen else "added"
                self.patches.append(f"importing {importing} {what} {name}")
        self._seen = now


def _names() -> Iterator[tuple[str, Any]]:
    """All names in llmk's modules and their values. The values are kept alive, so that ids stay unique."""
    for name, module in sorted(sys.modules.items()):
        if name.partition(".")[0] != "llmk" or name.startswith("llmk_testing"):
            continue
        for attribute, value in list(vars(module).items()):
            if attribute.startswith("__") or isinstance(value, ModuleType):
                continue
            yield f"{name}.{attribute}", value
            if isinstance(value, type) and value.__module__ == name:
                yield from ((f"{name}.{attribute}.{key}", held) for key, held in vars(value).items() if _is_own(key))
            elif isinstance(value, dict):
                yield from ((f"{name}.{attribute}[{key!r}]", held) for key, held in value.items())


def _is_own(key: str) -> bool:
    """Whether an attribute of a class is defined by its author, not by Python or pydantic."""
    methods = ("__init__", "__call__", "__new__", "__post_init__", "__getattr__", "__setattr__", "__eq__", "__hash__")
    return not key.startswith(("__", "_abc_", "_is_")) or key in methods


if __name__ == "__main__":
    main()

"""The suite of the distribution itself: metadata, the import of its spec modules, and that it does not patch llmk."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path

import importlib_metadata as metadata
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from llmk.api import TunedConfigs
from llmk.kernel.discovery import CORE, Plugin
from llmk.kernel.interpreter import PYTHON
from llmk.kernel.registry import HOOKS
from llmk_testing.case import Case, Skip
from llmk_testing.imports import TIMEOUT, Imports

HEAVY = ("torch", "transformers", "tensorflow", "jax")
"""Packages that cost seconds, so that a spec module must not import them."""

MILLISECONDS = 300
"""Allowed CPU time of importing a spec module, without ``llmk.api``."""

_IMPORT = f"""
import json, sys, time
import llmk.api
start, before = time.process_time(), set(sys.modules)
__import__(sys.argv[1])
spent = 1000 * (time.process_time() - start)
heavy = sorted(set({HEAVY!r}) & (set(sys.modules) - before))
sys.stdout.flush(), sys.stderr.flush()
sys.stdout.write("\\n" + json.dumps([spent, heavy]))
"""


def cases(distribution: str, imports: Imports) -> Iterator[Case]:
    """The cases of a distribution that has at least one plugin."""

    def case(name: str, run: Callable[[], str | None]) -> Case:
        return Case(distribution, "wheel", name, run)

    yield case("its version and what it requires can be read", partial(check_metadata, distribution))
    yield case("it says which llmk-core it works with", partial(check_bound, distribution))
    for plugin in imports.plugins:
        yield case(f"the plugin {plugin.name} takes part", partial(check_active, plugin))
        yield case(f"the hooks of {plugin.name} return something", partial(check_returned, plugin))
    for module in imports.modules:
        yield case(f"{module} imports none of the heavy packages", partial(check_light, module))
        yield case(f"{module} imports in {MILLISECONDS} ms", partial(check_quick, module))
        yield case(f"{module} prints nothing when it is imported", partial(check_quiet, module))
    yield case("its modules leave the names of llmk alone", partial(check_patches, imports))
    for registered in imports.specs:
        if isinstance(registered.spec, TunedConfigs):
            yield case(f"the measurements {registered.spec.id} can be read", partial(check_tuned, registered.spec))


def check_metadata(distribution: str) -> None:
    """Version and requirements must follow PEP 440 and PEP 508."""
    found = metadata.distribution(distribution)
    try:
        Version(found.version)
        [Requirement(line) for line in found.requires or ()]
    except (InvalidVersion, ValueError) as error:
        raise AssertionError(str(error)) from error


def check_bound(distribution: str) -> None:
    """It must require the core with an upper bound before the next release that may break the plugin."""
    if distribution == CORE:
        return
    requirements = [Requirement(line) for line in metadata.requires(distribution) or ()]
    needed = [one for one in requirements if canonicalize_name(one.name) == CORE]
    version = Version(metadata.version(CORE))
    example = f'dependencies = ["{CORE}>={version.major}.{version.minor},<{version.major}.{version.minor + 1}"]'
    assert needed, f"it doesn't require {CORE}; in pyproject.toml: {example}"
    bounded = any(bound.operator in ("<", "<=", "==", "===", "~=") for one in needed for bound in one.specifier)
    found = ", ".join(map(str, needed))
    assert bounded, f"it requires {found}, which allows releases that may change the contracts; for example: {example}"


def check_active(plugin: Plugin) -> None:
    """Discovery must accept it with its hooks and specs."""
    tail = "\n".join(plugin.traceback.splitlines()[-8:])
    reasons = "\n".join(map(str, plugin.reasons))
    assert plugin.state == "active", f"it is {plugin.state}: {reasons}\n{tail}".rstrip()


def check_returned(plugin: Plugin) -> None:
    """A hook for specs that returns nothing at all has most likely lost its ``return``."""
    silent = [hook for hook in plugin.hooks if hook in HOOKS and plugin.is_usable and plugin.call(hook) is None]
    assert not silent, f"{', '.join(silent)} returned None; return a list of specs, which may be empty"


def check_light(module: str) -> None:
    """It must not import packages that take seconds."""
    _, heavy, _ = _import(module)
    advice = "import them where they are used; specs name implementations as 'module:attribute'"
    assert not heavy, f"{module} imports {', '.join(heavy)}; {advice}"


def check_quick(module: str) -> str:
    """Every startup pays for it, and every ``llmk --help`` of a command that plans."""
    spent, _, _ = _import(module)
    assert spent <= MILLISECONDS, f"importing {module} took {spent:.0f} ms of CPU time"
    return f"{spent:.0f} ms"


def check_quiet(module: str) -> None:
    """Commands print JSON that others read."""
    _, _, printed = _import(module)
    assert not printed, f"importing {module} printed {printed!r}"


def check_patches(imports: Imports) -> None:
    """A plugin must use hooks instead of patching."""
    assert not imports.patches, "\n".join([*imports.patches, "use a hook instead"])


def check_tuned(spec: TunedConfigs) -> None:
    """The folder must exist and contain files as ``llmk tune`` writes them; other files would be ignored silently."""
    found = find_spec(spec.package)
    assert found is not None, f"there is no package {spec.package}"
    files = [
        file for place in found.submodule_search_locations or () for file in Path(place, spec.folder).glob("*.json")
    ]
    assert files, f"no JSON file in the folder {spec.folder} of {spec.package}; list it in the wheel's package data"
    for file in files:
        lacking = {"device", "versions", "measured"} - set(json.loads(file.read_text()))
        assert not lacking, f"{file} lacks {', '.join(sorted(lacking))}; llmk tune writes such files"


@cache
def _import(module: str) -> tuple[float, list[str], str]:
    """CPU milliseconds, heavy packages and output of importing a module: the fastest of three imports."""
    best: tuple[float, list[str], str] | None = None
    for _ in range(3):
        command = [*PYTHON, "-c", _IMPORT, module]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
        if done.returncode:
            raise Skip(f"it can't be imported: {(done.stderr.splitlines() or [str(done.returncode)])[-1]}")
        printed, _, result = done.stdout.rpartition("\n")
        spent, heavy = json.loads(result)
        found = (spent, heavy, (printed + done.stderr).strip())
        best = found if best is None else min(best, found)
        if best[0] <= MILLISECONDS:
            break
    assert best is not None
    return best

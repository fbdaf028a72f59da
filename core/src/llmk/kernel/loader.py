"""Loads the implementations that specs name, once they are chosen; or checks that they exist, without importing
them."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import lru_cache, partial, reduce
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from llmk.api import PluginError, Reason
from llmk.api.errors import describe
from llmk.kernel.contracts import NotFollowed, checked
from llmk.kernel.discovery import REPLACED, Plugin
from llmk.kernel.patches import replaced
from llmk.kernel.watchdog import MODULES, watched


def load_object(location: str, *, plugin: Plugin | str = "", kind: str = "", id: str = "") -> Any:
    """Imports ``"module:attribute"``; ``plugin`` is whose it is, or the distribution's name and version.

    Where ``kind`` is one of :data:`~llmk.kernel.contracts.CONTRACTS`, what is found must follow that contract, and so
    must what it returns when it is called. ``id`` is that of the spec that names it, for errors. Raises PluginError
    that names the wheel and the cause, no matter what the import raises.
    """
    module, _, attribute = location.partition(":")
    wheel, known = _wheel(plugin), module in sys.modules
    hint = f'fix or uninstall the wheel, or [plugins] disable = ["{wheel.partition(" ")[0]}"] leaves it out'
    try:
        with nullcontext() if known else watched(f"the import of {location} ({wheel})", hint, MODULES):
            found = reduce(getattr, attribute.split("."), import_module(module))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise _not_loaded(location, wheel, Reason("import_failed", location, describe(error)), id) from error
    if names := [] if known else replaced(module):
        reason = Reason(REPLACED, "nothing of llmk's to be replaced", ", ".join(names))
        raise _not_loaded(location, wheel, reason, id)
    return checked(found, kind, partial(not_followed, location, wheel, id)) if kind else found


def not_followed(location: str, wheel: str, id: str, error: NotFollowed) -> PluginError:
    """The error of a plugin's object that does not follow its contract."""
    return _not_loaded(location, wheel, error.reason, id)


def check_present(location: str, *, plugin: Plugin | str = "", kind: str = "", id: str = "") -> None:
    """Raises PluginError where :func:`load_object` would find no such module, or no such name in it. Imports nothing.

    Names that a module creates dynamically, and modules that are not Python source, can't be checked and are accepted.
    """
    module, _, attribute = location.partition(":")
    first = attribute.partition(".")[0]
    try:
        names = _names(module)
    except ModuleNotFoundError as error:
        raise _not_loaded(location, _wheel(plugin), Reason("import_failed", location, describe(error)), id) from error
    if names is not None and first not in names:
        reason = Reason("import_failed", location, f"{module} has no {first!r}")
        raise _not_loaded(location, _wheel(plugin), reason)


def _wheel(plugin: Plugin | str) -> str:
    return (plugin if isinstance(plugin, str) else plugin.wheel) or "an unknown wheel"


def _not_loaded(location: str, wheel: str, reason: Reason, id: str = "") -> PluginError:
    what = f"{location} of {wheel}" + (f", the implementation of {id}," if id else "")
    hint = "fix the wheel, or install another release of it"
    return PluginError(f"{what} can't be loaded", reasons=[reason], hint=hint)


def _names(module: str) -> set[str] | None:
    """The top-level names of a module; ``None`` if they can't be determined. Raises ModuleNotFoundError."""
    if module in sys.modules:
        names = set(vars(sys.modules[module]))
        return None if "__getattr__" in names else names
    found = _find(module)
    file = Path(found.origin or "")
    if not found.has_location or file.suffix != ".py":
        return None
    try:
        return _assigned(file, file.stat().st_mtime_ns)
    except (OSError, SyntaxError, ValueError):
        return None  # the process that imports it raises a better error


def _find(module: str) -> ModuleSpec:
    """Like :func:`importlib.util.find_spec`, but without importing parent packages."""
    parent, _, _ = module.rpartition(".")
    path = None
    if parent:
        package = sys.modules.get(parent)
        path = getattr(package, "__path__", None) if package else _find(parent).submodule_search_locations
        if path is None:
            raise ModuleNotFoundError(f"No module named {module!r}; {parent!r} is not a package")
    for finder in sys.meta_path:
        find: Callable[..., ModuleSpec | None] | None = getattr(finder, "find_spec", None)
        if find is not None and (found := find(module, path)) is not None:
            return found
    raise ModuleNotFoundError(f"No module named {module!r}")


@lru_cache(maxsize=256)
def _assigned(file: Path, modified: int) -> set[str] | None:
    names = set(_bound(ast.parse(file.read_bytes()).body))
    return None if {"*", "__getattr__"} & names else names


def _bound(statements: list[ast.stmt]) -> Iterator[str]:
    """Names that statements bind in a module's scope, including nested statements."""
    for statement in statements:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield statement.name
            continue
        if isinstance(statement, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in statement.names)
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
        for field in ("body", "orelse", "finalbody"):
            yield from _bound(getattr(statement, field, []))
        for inner in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
            yield from _bound(inner.body)

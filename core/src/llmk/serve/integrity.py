"""Checks, after plugins were imported, that the security-relevant functions of the server are the core's own.

Plugins run in this process with all its rights, so this does not stop an attacker. It finds a plugin that replaces a
function of the core for another purpose, and thereby disables a protection of the server.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from importlib.abc import InspectLoader
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, cast

import importlib_metadata as metadata

from llmk.api import PluginError
from llmk.serve import service
from llmk.serve.http import allowed_hosts as hosts
from llmk.serve.http import auth, error_handlers, errors, limits, pages
from llmk.serve.metrics import access_log as traffic

GUARDS: tuple[ModuleType, ...] = (auth, error_handlers, errors, hosts, limits, pages, service, traffic)


def check_integrity() -> None:
    """Raises :class:`~llmk.api.PluginError`, with the wheel, if a function of :data:`GUARDS` was replaced."""
    for module in GUARDS:
        for name, found in _functions(module):
            if (file := _file(found)) != module.__file__:
                raise PluginError(
                    f"{module.__name__}.{name}, which guards this server, was replaced by {_owner(file)}",
                    hint="leave that plugin out with --plugins.disable, and have its author use a hook",
                )


def _functions(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """The current values of the functions and methods that a module's file defines."""
    assert module.__spec__
    compiled = cast(InspectLoader, module.__spec__.loader).get_code(module.__name__)  # reads what is cached
    assert compiled
    for name, code in _defined(compiled):
        found = getattr(module, name, None)
        yield name, found
        if inspect.isclass(found):
            for method, _ in _defined(code):
                yield f"{name}.{method}", inspect.getattr_static(found, method, None)


def _defined(code: CodeType) -> Iterator[tuple[str, CodeType]]:
    """Names and code of the ``def`` and ``class`` statements in the body of a module or class."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType) and constant.co_name.isidentifier():
            yield constant.co_name, constant


def _file(found: Any) -> str:
    """The file that defines a class or function, which may be wrapped."""
    if inspect.isclass(found):
        return getattr(sys.modules.get(found.__module__), "__file__", None) or ""
    while found is not None and not isinstance(found, FunctionType):
        found = getattr(found, "__func__", getattr(found, "fget", getattr(found, "__wrapped__", None)))
    return found.__code__.co_filename if found is not None else ""


def _owner(name: str) -> str:
    """The distribution that contains a file."""
    tops = [Path(folder) for folder in sys.path if folder]
    package = next((Path(name).relative_to(top).parts[0] for top in tops if Path(name).is_relative_to(top)), "")
    wheels = metadata.packages_distributions().get(package.removesuffix(".py"), [])
    return f"{' or '.join(wheels)} ({name})" if wheels else name or "an object that is not a Python function"

"""Loads what a spec names, only once it has won."""

from __future__ import annotations

from functools import reduce
from importlib import import_module
from typing import Any

from llmk.api import PluginError, Reason
from llmk.kernel.discovery import Plugin, describe


def load_object(location: str, *, plugin: Plugin | str = "") -> Any:
    """Imports ``"module:attribute"``; ``plugin`` is whose it is, or the distribution's name.

    Raises PluginError that names the wheel and the cause, whatever the import raises.
    """
    wheel = plugin if isinstance(plugin, str) else plugin.wheel
    module, _, attribute = location.partition(":")
    try:
        return reduce(getattr, attribute.split("."), import_module(module))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        reason = Reason("import_failed", location, describe(error))
        hint = f"mend or reinstall it: pip install --force-reinstall {wheel.partition(' ')[0]}" if wheel else ""
        owner = f" of {wheel}" if wheel else ""
        raise PluginError(f"{location}{owner} can't be loaded", reasons=(reason,), hint=hint) from error

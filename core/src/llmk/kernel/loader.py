"""Loads what a spec names, only once it has won."""

from __future__ import annotations

from functools import reduce
from importlib import import_module
from typing import Any

from llmk.api import PluginError, Reason
from llmk.kernel.discovery import Plugin, describe


def load_object(location: str, *, plugin: Plugin | None = None, wheel: str = "") -> Any:
    """Imports ``"module:attribute"``. Raises PluginError that names the wheel and the cause, whatever the import raises."""
    owner = plugin.wheel if plugin is not None else wheel
    module, _, attribute = location.partition(":")
    try:
        return reduce(getattr, attribute.split("."), import_module(module))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        hint = f"mend or reinstall {owner.split(' ')[0]}" if owner else "mend or reinstall the wheel that it comes from"
        reason = Reason("import_failed", location, describe(error))
        message = f"{location} of {owner or 'an unknown wheel'} can't be loaded"
        raise PluginError(message, reasons=(reason,), hint=hint) from error

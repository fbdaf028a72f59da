"""Loads what a spec names, only once it has won."""

from __future__ import annotations

from functools import reduce
from importlib import import_module
from typing import Any

from llmk.api import PluginError, Reason
from llmk.api.errors import describe
from llmk.kernel.discovery import Plugin


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
        message = f"{location} of {wheel or 'an unknown wheel'} can't be loaded"
        raise PluginError(message, reasons=[reason], hint="mend or reinstall the wheel") from error

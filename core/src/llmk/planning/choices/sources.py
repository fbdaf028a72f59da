"""Gets a model that is named, rather than given as a folder, from the source that claims the name."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from llmk.api import FetchedModel, ModelSource, ModelSourceContext, ModelSourceSpec, SelectionError
from llmk.api.errors import LlmkError, PluginError, describe
from llmk.api.matching import evaluate
from llmk.api.verdict import Reason
from llmk.config.measurements import cache_folder
from llmk.kernel.loader import load_object
from llmk.kernel.registry import Registered, Registry
from llmk.kernel.watchdog import watched
from llmk.planning.choices.fetch_progress import Shown

if TYPE_CHECKING:
    from llmk.config import Config, Settings

Source = Registered[ModelSourceSpec]

_PATH = re.compile(r"[~/]|\.{1,2}(/|$)|(?!\w+://).*/$")
"""What can only be meant as a path."""
_MOST_NEIGHBOURS = 1000
"""Files of a folder among which one is looked for that may have been meant."""


def fetch_model(registry: Registry, config: Config, named: str, *, outline: bool = False) -> FetchedModel | None:
    """The model of the source that claims the name, downloaded if need be; ``None`` for what is a path, or claimed by
    none. ``outline``: its weights are not needed; nor are they with ``model.load_format = "dummy"``.

    Raises SelectionError where two sources claim it, the source's own errors, and PluginError where it fails.
    """
    if is_path(named):
        return None
    able = [each for each in registry.of(ModelSourceSpec) if _claims(each, named)]
    if len(able) > 1:
        names = " and ".join(f"{each.spec.id} of {each.plugin.wheel}" for each in able)
        hint = f'leave one out: [plugins] disable = ["{able[-1].plugin.distribution}"]'
        raise SelectionError(f"{names} both claim the model {named}", hint=hint)
    if not able:
        return None
    chosen, shown = able[0], Shown(named)
    source = make_source(chosen, config)
    try:
        return source.fetch(named, shown.update, outline=outline or config.model.load_format == "dummy")
    except LlmkError:
        raise
    except Exception as error:
        message = f"{chosen.spec.id} of {chosen.plugin.wheel} can't get the model {named}"
        raise PluginError(message, reasons=[Reason("fetch_raised", found=describe(error))]) from error
    finally:
        shown.close()


def fetch_ahead(settings: Settings) -> FetchedModel | None:
    """What :func:`fetch_model` returns, for a command that starts its engine in another thread than the main one, which
    an interrupt would not reach."""
    named = settings.config.model.path
    if named in ("", "demo") or is_path(named):
        return None
    return fetch_model(Registry.discover(settings.config.plugins), settings.config, named)


def make_source(chosen: Source, config: Config) -> ModelSource:
    """The source, made. Raises PluginError if that fails."""
    spec, plugin = chosen.spec, chosen.plugin
    make = load_object(spec.implementation, plugin=plugin, kind="model_source", id=spec.id)
    context = ModelSourceContext(cache=cache_folder() / spec.id, options=config.plugin.get(plugin.name, {}))
    try:
        with watched(f"the making of {spec.id} ({plugin.wheel})", plugin.way_out):
            source: ModelSource = make(context)
    except (LlmkError, KeyboardInterrupt):
        raise
    except BaseException as error:
        message = f"{spec.id} of {plugin.wheel} can't be made"
        raise PluginError(message, reasons=[Reason("source_raised", found=describe(error))]) from error
    return source


def near_names(registry: Registry, config: Config, named: str, *, paths: bool = True) -> list[str]:
    """What may have been meant by a name that is nothing: models that sources have on this machine, and, with
    ``paths``, the demo model, and folders and files next to it."""
    known = {"demo": "demo"} if paths else {}
    for each in registry.of(ModelSourceSpec):
        with suppress(Exception):  # a source that fails is not what the user asked about
            for stored in make_source(each, config).stored():
                known[stored.reference.lower()] = known[stored.reference.rpartition("/")[2].lower()] = stored.reference
    folder = Path(named).expanduser().parent
    with suppress(OSError):
        for path in islice(folder.iterdir() if paths else (), _MOST_NEIGHBOURS):
            if path.is_dir() or path.suffix == ".gguf":
                known[str(folder / path.name).lower()] = str(folder / path.name)
    wanted = str(Path(named).expanduser()).lower() if named else ""
    return list(dict.fromkeys(known[name] for name in get_close_matches(wanted, known, n=3, cutoff=0.75)))


def is_path(named: str) -> bool:
    """Whether a name can only be meant as a path, or is one that there is."""
    return bool(_PATH.match(named)) or os.path.lexists(named)


def _claims(each: Source, named: str) -> bool:
    with watched(f"the claim of {each.spec.id} ({each.plugin.wheel})", each.plugin.way_out):
        return bool(evaluate(each.spec.claims, named))

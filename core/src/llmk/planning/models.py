"""Chooses the model family for a checkpoint, and gets the model's facts from it."""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING

import importlib_metadata as metadata

from llmk.api import Checkpoint, ModelFacts, ModelSpec, Reason
from llmk.api.errors import LlmkError, ModelNotFound, PluginError, SelectionError, UnknownArchitecture, describe
from llmk.api.matching import match_model
from llmk.kernel.loader import load_object
from llmk.kernel.registry import Registered, Registry
from llmk.kernel.watchdog import watched
from llmk.planning.selection import elect

if TYPE_CHECKING:
    from llmk.config import Config

MODELS_WHEEL = "llmk-models"


def find_checkpoint(registry: Registry, path: str) -> str:
    """``path``, or the folder of the demo model if it is empty or ``"demo"``. Raises ModelNotFound."""
    if path not in ("", "demo"):
        return path
    folders = registry.call("llmk_demo_checkpoint", str)
    if not folders:
        hint = f"name a checkpoint folder, or pip install {MODELS_WHEEL}"
        raise ModelNotFound("no model is named, and no installed wheel contains a demo model", hint=hint)
    return folders[0][1]


def describe_model(model: Registered[ModelSpec], checkpoint: Checkpoint) -> ModelFacts:
    """Calls the family's ``describe``. Its LlmkErrors are raised as they are, other exceptions as PluginError."""
    function = load_object(model.spec.describe, plugin=model.plugin, kind="describe", id=model.spec.id)
    try:
        with watched(f"{model.spec.describe} ({model.plugin.wheel})", model.plugin.way_out):
            facts = function(checkpoint)
        if not isinstance(facts, ModelFacts):
            raise TypeError(f"{model.spec.describe} returned {type(facts).__name__}, not ModelFacts")
    except (LlmkError, KeyboardInterrupt):
        raise
    except BaseException as error:
        message = f"{model.spec.id} of {model.plugin.wheel} can't describe {checkpoint.path}"
        raise PluginError(message, reasons=[Reason("describe_raised", found=describe(error))]) from error
    return replace(facts, model=model.spec.id)


def choose_model(registry: Registry, config: Config, checkpoint: Checkpoint) -> Registered[ModelSpec]:
    """The family that registers the checkpoint's architecture, else one that matches all (``"*"``).

    Raises UnknownArchitecture, SelectionError.
    """
    wanted = checkpoint.architecture
    deterministic = config.engine.deterministic
    claims = [(model, match_model(model.spec, wanted, deterministic=deterministic)) for model in registry.of(ModelSpec)]
    chosen, _ = elect("[select.model]", config.select.model, claims, rank=lambda spec: wanted in spec.architectures)
    if chosen is not None:
        return chosen
    refused = [r.about(m.spec.id) for m, verdict in claims for r in verdict.reasons if r.code == "not_deterministic"]
    if refused:
        message = f"no installed model family serves {wanted} with batch invariance"
        raise SelectionError(message, reasons=refused, hint="leave out --engine.deterministic")
    known = sorted({name for model, _ in claims for name in model.spec.architectures} - {"*"})
    close = get_close_matches(wanted, known, n=3, cutoff=0.4) or known
    hint = f"nearest: {', '.join(close) or 'none'}; a wheel that registers it must be installed"
    if not any(metadata.distributions(name=MODELS_WHEEL)):
        hint = f"pip install {MODELS_WHEEL}"
    raise UnknownArchitecture(f"no installed plugin registers the architecture {wanted!r}", hint=hint)

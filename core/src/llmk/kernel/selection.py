"""Choices that don't hang on a site: the model's family, its quantization method, its parsers."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import importlib_metadata as metadata

from llmk.api import (
    Checkpoint,
    CheckpointError,
    ModelSpec,
    QuantizationSpec,
    Reason,
    SelectionError,
    UnknownArchitecture,
)
from llmk.kernel.matching import ask, located
from llmk.kernel.registry import Registered, Registry

if TYPE_CHECKING:
    from llmk.config import Config

MODELS_WHEEL = "llmk-models"


def unknown_id(registry: Registry, kind: str, id: str, known: Sequence[str]) -> SelectionError:
    """The error for an id that is named in the configuration and registered by nobody."""
    refused = next((r.reason for r in registry.refused if r.kind == kind and r.registered.spec.id == id), None)
    close = get_close_matches(id, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else f"known ids: {', '.join(known) or 'none'}"
    reasons = (refused,) if refused else ()
    return SelectionError(f"no {kind} has the id {id!r} that [select.{kind}] names", reasons=reasons, hint=hint)


def find_model(registry: Registry, id: str) -> Registered[ModelSpec]:
    """The model family of that id. Raises SelectionError."""
    for model in registry.models:
        if model.spec.id == id:
            return model
    raise unknown_id(registry, "model", id, [m.spec.id for m in registry.models])


def choose_model(registry: Registry, config: Config, checkpoint: Checkpoint) -> Registered[ModelSpec]:
    """The family that serves the checkpoint's architecture: pinned, else preferred, else by name, else one that claims all.

    Raises UnknownArchitecture, SelectionError.
    """
    rules = config.select.model
    wanted = checkpoint.architecture
    pin = rules.use if isinstance(rules.use, str) else rules.use.get(wanted, "")
    if pin:
        return find_model(registry, pin)
    models = [m for m in registry.models if m.spec.id not in rules.avoid]
    for pattern in (wanted, "*"):
        claiming = [m for m in models if pattern in m.spec.architectures]
        preferred = [m for id in rules.prefer for m in claiming if m.spec.id == id]
        if claiming:
            return settle(preferred[:1] or claiming, "model", f"architecture {wanted}")
    raise _unknown_architecture(registry, checkpoint)


def _unknown_architecture(registry: Registry, checkpoint: Checkpoint) -> UnknownArchitecture:
    wanted = checkpoint.architecture
    known = sorted({a for m in registry.models for a in m.spec.architectures} - {"*"})
    if not wanted:
        return UnknownArchitecture(
            f"{checkpoint.path}/config.json names no architectures", hint="add the model's class name"
        )
    if not any(d.name == MODELS_WHEEL for d in metadata.distributions(name=MODELS_WHEEL)):
        hint = f"pip install {MODELS_WHEEL}"
    else:
        close = get_close_matches(wanted, known, n=3, cutoff=0.4)
        hint = f"nearest: {', '.join(close)}; " if close else f"known: {', '.join(known) or 'none'}; "
        hint += "another wheel may register it"
    return UnknownArchitecture(f"no installed plugin registers the architecture {wanted}", hint=hint)


def choose_quantization(
    registry: Registry, config: Config, checkpoint: Checkpoint
) -> Registered[QuantizationSpec] | None:
    """The method that claims the checkpoint's quantization, ``None`` where it has none. Raises CheckpointError."""
    if not checkpoint.quantization:
        return None
    rules = config.select.quantization
    verdicts = [(method, ask(method.spec.claims, checkpoint)) for method in registry.quantization]
    claiming = [method for method, verdict in verdicts if verdict and method.spec.id not in rules.avoid]
    if isinstance(rules.use, str) and rules.use:
        claiming = [method for method in claiming if rules.use in (method.spec.id, method.spec.name)]
    if not claiming:
        name = checkpoint.quantization.get("quant_method", "unnamed")
        installed = ", ".join(method.spec.id for method, _ in verdicts) or "none"
        raise CheckpointError(
            f"the checkpoint is quantized with {name!r}, and no installed method claims it (installed: {installed})",
            reasons=[r for method, verdict in verdicts for r in located(verdict.reasons, method.spec.id)],
            hint="install a wheel with that method (pip install llmk-quantization), or use the unquantized checkpoint",
        )
    preferred = [method for id in rules.prefer for method in claiming if method.spec.id == id]
    return settle(preferred[:1] or claiming, "quantization", "this checkpoint's weights")


def settle(found: Sequence[Registered[Any]], kind: str, what: str) -> Registered[Any]:
    if len(found) == 1:
        return found[0]
    names = " and ".join(f"{r.spec.id} of {r.plugin.wheel}" for r in found)
    hint = f'settle it with [select.{kind}] use = "{found[0].spec.id}"'
    raise SelectionError(f"{names} tie for {what}", reasons=[Reason("tie", found=r.spec.id) for r in found], hint=hint)

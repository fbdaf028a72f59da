"""Chooses the speculator that the configuration names, and makes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from llmk.api import (
    Checkpoint,
    Choice,
    DeviceSpeculator,
    HeadSpeculator,
    LlmkError,
    Piece,
    Plan,
    PluginError,
    Reason,
    Rejection,
    Speculator,
    SpeculatorContext,
    SpeculatorSpec,
    Verdict,
)
from llmk.api.errors import describe
from llmk.api.matching import evaluate
from llmk.config.schema import SelectSection
from llmk.kernel.loader import load_object
from llmk.kernel.registry import Registry
from llmk.planning.ranking import END
from llmk.planning.selection import elect

if TYPE_CHECKING:
    from llmk.config import Config
    from llmk.planning.boot import Boot

LINE, SITE = "[speculation]", "speculation"
HOST, DEVICE, HEADS = "speculator", "device_speculator", "head_speculator"
"""The kinds of choice: one that drafts between steps, one that drafts inside of them, and one that does so by heads of
the model."""


def needs_heads(registry: Registry, config: Config) -> bool:
    """Whether the speculator that the configuration names drafts by heads of the model."""
    named = (found.spec for found in registry.of(SpeculatorSpec))
    return any(spec.heads and config.speculation.use in (spec.name, spec.id) for spec in named)


def choose_speculator(
    registry: Registry, config: Config, checkpoint: Checkpoint, excluded: Mapping[str, Reason]
) -> Choice | None:
    """The choice of the speculator for the plan; ``None`` if the configuration names none.

    Raises SelectionError if the named one is not installed, does not support the checkpoint, can't be imported
    (``excluded``), or ties with another.
    """
    wanted = config.speculation.use
    if not wanted:
        return None
    known = registry.of(SpeculatorSpec)
    verdicts = {
        found.spec.id: Verdict(False, (excluded[found.spec.id],))
        if found.spec.id in excluded
        else evaluate(found.spec.supports, checkpoint)
        for found in known
    }
    chosen, why = elect(LINE, SelectSection(use=wanted), [(found, verdicts[found.spec.id]) for found in known])
    assert chosen is not None, "a pin is honoured, or raises"
    spec, plugin = chosen.spec, chosen.plugin
    where = (plugin.distribution, plugin.version, spec.implementation, "", "")
    piece = Piece(1, END, spec.id, *where, why, capture="full")  # the host's take no part in what is recorded
    rejected = tuple(
        Rejection(other.spec.id, other.plugin.distribution, (Reason("not_chosen", found=why),))
        for other in known
        if other is not chosen
    )
    kind = HEADS if spec.heads else DEVICE if spec.on_device else HOST
    return Choice(kind, SITE, "", None, (piece,), rejected)


def speculation_of(plan: Plan) -> Choice | None:
    """The choice of the speculator, of one of the kinds above; ``None`` where nothing is drafted."""
    kinds = HOST, DEVICE, HEADS
    return next((choice for choice in plan.choices if choice.site == SITE and choice.kind in kinds), None)


def render_speculation(boot: Boot) -> str:
    """What is drafted, in a line; empty where nothing is."""
    choice = speculation_of(boot.plan)
    if choice is None:
        return ""
    most = boot.settings.config.speculation.num_drafts
    where = {
        HOST: "on the host, once it knows a request's last token",
        DEVICE: "on the device, inside of steps",
        HEADS: "with the model's own heads, inside of steps",
    }[choice.kind]
    return f"speculation: up to {most} drafts per request and step, as many as pay, by {choice.id} {where}"


def host_speculator(boot: Boot) -> Speculator | None:
    """Makes the speculator that drafts on the host; ``None`` where the plan has no such. Raises PluginError."""
    made: Speculator | None = _make(boot, HOST)
    return made


def device_speculator(boot: Boot) -> DeviceSpeculator | None:
    """Makes the speculator that drafts on the device; ``None`` where the plan has no such. Raises PluginError."""
    made: DeviceSpeculator | None = _make(boot, DEVICE)
    return made


def head_speculator(boot: Boot) -> HeadSpeculator | None:
    """Makes the speculator that drafts by heads of the model; ``None`` where the plan has no such. Raises
    PluginError."""
    made: HeadSpeculator | None = _make(boot, HEADS)
    return made


def _make(boot: Boot, kind: str) -> Any:
    choice = speculation_of(boot.plan)
    if choice is None or choice.kind != kind:
        return None
    (piece,) = choice.pieces
    config, facts = boot.settings.config, boot.facts
    plugin = next(found.plugin for found in boot.registry.of(SpeculatorSpec) if found.spec.id == piece.id)
    make = load_object(piece.implementation, plugin=plugin, kind=kind, id=piece.id)
    options = config.plugin.get(plugin.name, {})
    try:
        return make(SpeculatorContext(facts.vocab_size, config.speculation.num_drafts, facts.max_model_len, options))
    except LlmkError:
        raise
    except Exception as error:
        hint = f"fix [plugin.{plugin.name}], or name another speculator with {LINE} use"
        reason = Reason("speculator_raised", piece.implementation, describe(error))
        raise PluginError(f"{piece.id} of {plugin.wheel} can't be made", reasons=[reason], hint=hint) from error

"""Chooses the model family for a checkpoint, and gets the model's facts from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, TypeVar

import importlib_metadata as metadata

from llmk.api import Checkpoint, ModelFacts, ModelSpec, Reason
from llmk.api.errors import (
    LlmkError,
    ModelNotFound,
    PluginError,
    SelectionError,
    UnknownArchitecture,
    UnsupportedOption,
    describe,
)
from llmk.api.matching import match_model
from llmk.kernel.loader import load_object
from llmk.kernel.registry import Registered, Registry
from llmk.kernel.watchdog import watched
from llmk.planning.adapters import Adapter, adapter_rooms
from llmk.planning.pooling import GENERATOR, Pooling, with_head
from llmk.planning.selection import elect
from llmk.tree import Ahead, CausalLM, Program, adapted, lower, model_facts
from llmk.tree import Config as ModelConfig

if TYPE_CHECKING:
    from llmk.config import Config

T = TypeVar("T")

TREE_MODEL = "llmk.nn.tree_model:TreeModel"
"""What implements the model of a tree; it takes the lowered tree as a third argument."""
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


def describe_model(
    model: Registered[ModelSpec],
    checkpoint: Checkpoint,
    adapters: Sequence[Adapter] = (),
    pooling: Pooling | None = None,
    ranks: int = 1,
    *,
    heads: bool = False,
) -> ModelFacts:
    """The facts of the family's tree for so many tensor-parallel ``ranks``, or those that its ``describe`` returns. Its
    LlmkErrors are raised as they are, other exceptions as PluginError."""
    if heads:
        heads_ahead(model, checkpoint)
    if model.spec.tree:
        program = model_program(model, checkpoint, adapters, pooling, ranks, heads=heads)
        facts = model_facts(program, ModelConfig(checkpoint))
    else:
        facts = _call(model, "describe", ModelFacts, checkpoint)
        _check_sites(model, facts)
    return replace(facts, model=model.spec.id)


def _check_sites(model: Registered[ModelSpec], facts: ModelFacts) -> None:
    for kind in ("attention", "recurrent", "linear", "moe", "ops"):
        names = [site.site for site in getattr(facts, kind)]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise PluginError(
                f"the facts of {model.spec.id} of {model.plugin.wheel} name {kind} sites twice: {', '.join(twice)}",
                hint="name sites with other facts differently",
            )


def model_tree(model: Registered[ModelSpec], checkpoint: Checkpoint) -> CausalLM | None:
    """The tree of a family that gives one. Errors as in :func:`describe_model`."""
    return _call(model, "tree", CausalLM, ModelConfig(checkpoint)) if model.spec.tree else None


def model_program(
    model: Registered[ModelSpec],
    checkpoint: Checkpoint,
    adapters: Sequence[Adapter] = (),
    pooling: Pooling | None = None,
    ranks: int = 1,
    *,
    heads: bool = False,
) -> Program:
    """The tree of a family that gives one, with the head that ``pooling`` wants, those that predict further tokens if
    ``heads`` are wanted, and room for adapters, lowered for so many tensor-parallel ``ranks``. Errors as in
    :func:`describe_model`."""
    tree = with_head(_call(model, "tree", CausalLM, ModelConfig(checkpoint)), pooling)
    if heads:
        tree = replace(tree, ahead=heads_ahead(model, checkpoint))
    return lower(adapted(tree, adapter_rooms(adapters, tree)) if adapters else tree, ranks=ranks)


def heads_ahead(model: Registered[ModelSpec], checkpoint: Checkpoint) -> tuple[Ahead, ...]:
    """The heads of a checkpoint that predict further tokens.

    Raises:
        SelectionError: it has none, or its family doesn't say what they are.
    """
    heads = _call(model, "ahead", tuple, ModelConfig(checkpoint)) if model.spec.ahead else ()
    if not heads:
        lacking = f"{checkpoint.name} has none" if model.spec.ahead else f"{model.spec.id} serves none"
        raise SelectionError(
            f"the speculator of speculation.use drafts by heads of the model that predict further tokens: {lacking}",
            hint="name a speculator that needs no heads, such as suffix_tree, or leave speculation.use empty",
        )
    return heads


def _call(model: Registered[ModelSpec], kind: str, returned: type[T], argument: object) -> T:
    """Calls the function that the spec names as ``kind``."""
    where = getattr(model.spec, kind)
    function = load_object(where, plugin=model.plugin, kind=kind, id=model.spec.id)
    try:
        with watched(f"{where} ({model.plugin.wheel})", model.plugin.way_out):
            found = function(argument)
        if not isinstance(found, returned):
            raise TypeError(f"{where} returned {type(found).__name__}, not {returned.__name__}")
    except (LlmkError, KeyboardInterrupt):
        raise
    except BaseException as error:
        message = f"{model.spec.id} of {model.plugin.wheel} can't describe the checkpoint"
        raise PluginError(message, reasons=[Reason(f"{kind}_raised", found=describe(error))]) from error
    return found


def _with_all_options(
    registry: Registry, chosen: Registered[ModelSpec], second: Registered[ModelSpec], checkpoint: Checkpoint
) -> Registered[ModelSpec]:
    """``chosen``, or ``second`` where only that one has the checkpoint's options."""
    try:
        model_tree(chosen, checkpoint)
    except UnsupportedOption as lacking:
        try:
            describe_model(second, checkpoint)
        except LlmkError as error:
            hint = f"{second.spec.id} can't serve it either: {error.message}"
            raise UnsupportedOption(lacking.message, hint=hint) from None
        registry.notices.append(f"{lacking.message}; so {second.spec.id} serves the model, which may be slower")
        return second
    return chosen


def choose_model(
    registry: Registry, config: Config, checkpoint: Checkpoint, *, with_tree: bool = False
) -> Registered[ModelSpec]:
    """The family that registers the checkpoint's architecture, else one that matches all (``"*"``). ``with_tree``: its
    model is to have another head, which only those that give a tree can. A family that lacks an option of the
    checkpoint is passed over, with a notice, for one that has it, unless the configuration names it.

    Raises UnknownArchitecture, SelectionError, UnsupportedOption.
    """
    wanted = checkpoint.architecture
    deterministic = config.engine.deterministic
    claims = [(model, match_model(model.spec, wanted, deterministic=deterministic)) for model in registry.of(ModelSpec)]
    rules = config.select.model
    chosen, _ = elect("[select.model]", rules, claims, rank=lambda spec: wanted in spec.architectures)
    if chosen is not None and (chosen.spec.tree or not with_tree):
        if rules.use or with_tree:
            return chosen
        others = [(model, verdict) for model, verdict in claims if model is not chosen]
        second, _ = elect("[select.model]", rules, others, rank=lambda spec: wanted in spec.architectures)
        return chosen if second is None else _with_all_options(registry, chosen, second, checkpoint)
    if chosen is not None:
        native = sorted({name for model, _ in claims if model.spec.tree for name in model.spec.architectures})
        what = f"no model family serves the pooled outputs of {wanted.removesuffix(GENERATOR)}"
        raise UnknownArchitecture(what, hint=f"served are the base models and classifiers of {', '.join(native)}")
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

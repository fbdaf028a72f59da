"""The facts of a lowered model: what planning needs to know, and the names by which layers find their kernels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from llmk.api import AttentionFacts, LinearFacts, ModelFacts, MoEFacts, OpFacts, RecurrentFacts, RowsFacts
from llmk.tree.attention import Attend
from llmk.tree.block import Block
from llmk.tree.config import Config
from llmk.tree.lowering import Program, Sublayer
from llmk.tree.rope import default_length
from llmk.tree.spec import Spec

_KINDS = {
    AttentionFacts: ("attention", "num_layers"),
    RecurrentFacts: ("recurrent", "num_layers"),
    RowsFacts: ("rows", "num_layers"),
    LinearFacts: ("linear", "count"),
    MoEFacts: ("moe", "count"),
    OpFacts: ("ops", ""),
}
"""By the type of a site's facts: the field of :class:`~llmk.api.ModelFacts`, and the field that counts layers."""


class Sites:
    """The sites of a model. A site is named by its role, with a number (``"qkv.2"``) where specs of one role have
    different facts.

    Args:
        leaves: in the order in which the model computes.
        dtype: the dtype of what layers keep between steps.
    """

    def __init__(self, leaves: Iterable[Spec], dtype: str) -> None:
        self._roles: dict[tuple[str, str], list[Any]] = {}
        self._facts: dict[str, dict[str, tuple[Any, list[tuple[str, ...]]]]] = {kind: {} for kind, _ in _KINDS.values()}
        """For each kind, by the name of a site: its facts for one layer, and the modules of each layer."""
        self._names: dict[int, str] = {}
        self._ops: dict[int, list[str]] = {}
        self._leaves = list({id(leaf): leaf for leaf in leaves}.values())  # kept, so that their ids stay theirs
        for leaf in self._leaves:
            if (own := leaf.site(dtype)) is not None:
                self._names[id(leaf)] = self._add(own, leaf.quantizable_modules())
        self.chains: dict[tuple[str, str], None] = {}
        """Op sites and the linear sites that follow them, in order."""
        fused: set[int] = set()
        for leaf in self._leaves:
            ops = leaf.ops(self.name)
            if isinstance(leaf, Sublayer) and leaf.joint.entry:
                fused.add(id(leaf.block))
            elif isinstance(leaf, Block) and id(leaf) not in fused:
                ops = leaf.own_ops(self.name)
            if ops:
                self._ops[id(leaf)] = [self._add(op) for op in ops]
                if isinstance(leaf, Block) and leaf.follower is not None:
                    self.chains[self._ops[id(leaf)][-1], self.name(leaf.follower)] = None

    def name(self, leaf: Spec) -> str:
        """The name of the attention, linear, expert or state site that ``leaf`` binds."""
        return self._names[id(leaf)]

    def ops(self, leaf: Spec) -> list[str]:
        """The names of the op sites that ``leaf`` binds, in the order of its ``ops``."""
        return self._ops.get(id(leaf), [])

    def of(self, kind: str) -> tuple[Any, ...]:
        """The facts of all sites of a kind: a field of :class:`~llmk.api.ModelFacts`."""
        counted = next(count for each, count in _KINDS.values() if each == kind)
        found = []
        for name, (facts, layers) in self._facts[kind].items():
            own: dict[str, Any] = {counted: len(layers)} if counted else {}
            if any(layers):
                own["modules"] = tuple(layers)
            found.append(replace(facts, site=name, **own))
        return tuple(found)

    def _add(self, facts: Any, modules: tuple[str, ...] = ()) -> str:
        """Adds a layer to the site with ``facts``; returns its name."""
        kind, role = _KINDS[type(facts)][0], facts.site
        alike = self._roles.setdefault((kind, role), [])
        number = next((n for n, other in enumerate(alike) if other is facts or other == facts), len(alike))
        if number == len(alike):
            alike.append(facts)
        name = f"{role}.{number + 1}" if number else role
        self._facts[kind].setdefault(name, (facts, []))[1].append(modules)
        return name


def model_facts(program: Program, config: Config) -> ModelFacts:
    """The facts of a lowered model. ``model`` is filled in with the spec's id by the caller."""
    model, sites = program.model, Sites(program.leaves(), config.dtype)
    shares = any(isinstance(leaf, Attend) and leaf.shares is not None for leaf in program.leaves())
    shorter, why = model.default_model_len, model.default_why
    if not shorter:
        shorter, why = default_length(config, model.max_model_len)
    return ModelFacts(
        architecture=config.architecture,
        model="",
        num_layers=len(model.layers),
        hidden_size=model.embed.size,
        vocab_size=model.embed.vocab_size,
        max_model_len=model.max_model_len,
        dtype=config.dtype,
        num_parameters=program.num_parameters,
        attention=sites.of("attention"),
        recurrent=sites.of("recurrent"),
        rows=sites.of("rows"),
        linear=sites.of("linear"),
        moe=sites.of("moe"),
        ops=sites.of("ops"),
        chains=tuple(sites.chains),
        parallel=("tensor",) if shares else ("tensor", "pipeline"),  # a stage has no caches of another
        default_model_len=shorter,
        default_why=why,
        takes_embeddings=model.stream is None or not model.stream.reads_tokens,
        state_dtype=config.state_dtype,
    )

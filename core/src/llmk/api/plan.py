"""The plan: the kernel chosen for every site, the reason, and the rejected candidates. Frozen and serialisable.

It is resolved once, before the engine starts; every worker loads exactly this plan. ``llmk explain``, the start-up
table and ``GET /v1/plan`` print it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from llmk.api.op_contract import OpContract
from llmk.api.platform import PlatformFacts
from llmk.api.query import Query
from llmk.api.verdict import Reason


@dataclass(frozen=True, slots=True)
class Rejection:
    """A candidate that was not chosen, and why."""

    id: str
    distribution: str
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """One kernel for token counts from ``start`` to ``stop - 1``."""

    start: int
    stop: int
    id: str
    distribution: str
    version: str
    implementation: str
    prepare: str
    tier: str
    why: str
    """``pinned by …``, ``preferred by …``, ``measured …``, ``tier native``, ``only candidate``, …"""
    capture: str = "none"
    """The spec's."""
    jit: bool = False
    """The spec's."""
    parts: tuple[str, ...] = ()
    """The spec's ``parts``. If there are any, ``implementation`` is a factory that takes them."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """The measured cost of an alternative that applies to all token counts of a site: a data layout, by name, or with
    batch invariance, which needs one kernel for all token counts, a kernel, by id."""

    name: str
    microseconds: tuple[tuple[int, float], ...]
    """Pairs of token count and time of the fastest kernel; token counts without a measurement are missing."""
    mean: float
    """Mean of ``microseconds``, weighted by :attr:`Plan.traffic`, over the measured token counts."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The kernels chosen for one site. ``parts`` are the choices for the parts of a composite op."""

    kind: str
    site: str
    op: str
    query: Query | None
    pieces: tuple[Piece, ...]
    rejected: tuple[Rejection, ...] = ()
    parts: tuple[Choice, ...] = ()
    layout: str = ""
    """The data layout that all pieces share. Empty for ops, which have none."""
    alternatives: tuple[Alternative, ...] = ()
    """Measured alternatives, fastest first. A pin or preference may have chosen another than the fastest."""

    @property
    def id(self) -> str:
        """The id of the kernel for a token count of 1."""
        return self.pieces[0].id

    def piece(self, num_tokens: int) -> Piece:
        """The piece for ``num_tokens``."""
        return next(piece for piece in self.pieces if piece.start <= num_tokens < piece.stop)

    def difference(self, other: Choice, num_tokens: int) -> tuple[str, str] | None:
        """The first pair of kernel ids, of the site or of its parts, in which this choice and ``other`` differ at
        ``num_tokens``; ``None`` if all are equal. Both must be for the same site."""
        mine, its = self.piece(num_tokens), other.piece(num_tokens)
        if mine.id != its.id:
            return mine.id, its.id
        parts = {part.op: part for part in other.parts if part.op in its.parts}
        differ = (part.difference(parts[part.op], num_tokens) for part in self.parts if part.op in parts)
        return next(filter(None, differ), None)

    def with_parts(self) -> Iterator[Choice]:
        """This choice, followed by the choices of its parts, recursively."""
        yield self
        for part in self.parts:
            yield from part.with_parts()


@dataclass(frozen=True, slots=True)
class Shadow:
    """A second kernel for a site, which also runs in a fraction ``rate`` of the steps. Its results are compared with
    those of the chosen kernel and then discarded."""

    choice: Choice
    rate: float
    contract: OpContract | None = None
    """The contract of the op, if one is registered."""


@dataclass(frozen=True, slots=True)
class QuantizationChoice:
    """A quantization method, which loads the weights of all sites whose query has its weight format. The fields are
    those of its :class:`~llmk.api.QuantizationSpec`."""

    id: str
    implementation: str
    weight_format: str
    weight_bits: float


@dataclass(frozen=True, slots=True)
class SiteVariant:
    """A part of a site of the model, whose layers have several weight formats: the layers with one of the formats.

    ``site`` is the name in the model, ``variant`` the name in the plan. ``members`` are, for a linear or MoE site, the
    layers' first modules by their names in the checkpoint; for an op site, the variant of its linear site.
    """

    kind: str
    site: str
    variant: str
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """All choices for one model on one platform.

    Each choice has a unique kind and site. ``wheels`` are the distributions in use with their versions; a worker checks
    that it runs the same ones. ``warnings`` are for the user: candidates that were skipped, defaults that were
    overridden. The model is spread over ``tensor * pipeline`` ranks; the choices are for the shapes of one rank.
    """

    platform: PlatformFacts
    platform_id: str
    platform_implementation: str
    model: str
    model_implementation: str
    architecture: str
    dtype: str
    choices: tuple[Choice, ...]
    wheels: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()
    quantization: tuple[QuantizationChoice, ...] = ()
    """The quantization methods of the checkpoint, or the one of plain weights while they load. Their weight formats
    differ."""
    variants: tuple[SiteVariant, ...] = ()
    tensor: int = 1
    pipeline: int = 1
    shadows: tuple[Shadow, ...] = ()
    traffic: tuple[tuple[int, float], ...] = ()
    """Pairs of token count and fraction of steps: the weights of :attr:`Alternative.mean`."""
    traffic_source: str = ""
    """Where ``traffic`` is from, in words."""

    @property
    def num_ranks(self) -> int:
        """The number of ranks over which the model is spread."""
        return self.tensor * self.pipeline

    @property
    def weight_bits(self) -> dict[str, float]:
        """:attr:`QuantizationChoice.weight_bits` by weight format."""
        return {method.weight_format: method.weight_bits for method in self.quantization}

    def ranks_on_same_device(self, rank: int) -> range:
        """The ranks on the device of ``rank``, including ``rank``. Ranks are assigned to devices round-robin."""
        devices = min(self.platform.num_devices or self.num_ranks, self.num_ranks)
        return range(rank % devices, self.num_ranks, devices)

    def choice(self, kind: str, site: str) -> Choice:
        """The choice for a site. Raises ``KeyError`` if the model's facts have no such site."""
        for choice in self.choices:
            if choice.kind == kind and choice.site == site:
                return choice
        known = ", ".join(f"{c.kind}:{c.site}" for c in self.choices)
        raise KeyError(f"the plan has no {kind} site {site!r}; it has {known}")

    def has(self, kind: str, site: str) -> bool:
        """Whether there is a choice for a site, as for those of ops that span others only where a kernel does."""
        return any((choice.kind, choice.site) == (kind, site) for choice in self.choices)

    def shadow(self, kind: str, site: str) -> Shadow | None:
        """The shadow of a site, if there is one."""
        return next((s for s in self.shadows if (s.choice.kind, s.choice.site) == (kind, site)), None)

    def all_choices(self) -> Iterator[Choice]:
        """Every choice, each followed by the choices of its parts."""
        for choice in self.choices:
            yield from choice.with_parts()

    @property
    def fingerprint(self) -> str:
        """A hash of everything that determines what runs: machine, model, wheels, dtype and choices, but not the
        reasons for the choices. It is the key of caches of compiled kernels and measurements."""
        facts: dict[str, Any] = _plain(asdict(self))
        shadows = (choice for shadow in self.shadows for choice in shadow.choice.with_parts())
        chosen = [
            (c.kind, c.site, c.query and _plain(asdict(c.query)), [(p.start, p.id) for p in c.pieces])
            for c in (*self.all_choices(), *shadows)
        ]
        facts |= {"choices": chosen, "warnings": [], "shadows": [shadow.rate for shadow in self.shadows]}
        facts |= {"traffic": [], "traffic_source": ""}
        return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """The plan and its fingerprint as plain data for JSON."""
        data: dict[str, Any] = _plain(asdict(self))
        return data | {"fingerprint": self.fingerprint}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (frozenset, set)):
        return sorted(_plain(v) for v in value)
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value

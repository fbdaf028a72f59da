"""The plan: every choice that was made, by whom, why, and what was turned down. Frozen and serialisable.

The launcher resolves it once; every worker loads exactly this plan. ``llmk explain``, the start-up table and ``GET
/v1/plan`` print it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from llmk.api.platform import PlatformFacts
from llmk.api.query import Query
from llmk.api.specs import OpContract
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
    """The spec's ``parts``: where there are any, ``implementation`` is a factory that takes them."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """What an alternative costs that serves all token counts of a site alike, by measurement: a layout of its data, by
    name, or a kernel, by id, where batch invariance takes one for all."""

    name: str
    microseconds: tuple[tuple[int, float], ...]
    """Of the fastest kernel, by the plan's ``traffic``; token counts at which none was measured are missing."""
    mean: float
    """Over the traffic's steps, as far as they were measured."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen for one site. ``parts`` are the choices for the parts of a composite op."""

    kind: str
    site: str
    op: str
    query: Query | None
    pieces: tuple[Piece, ...]
    rejected: tuple[Rejection, ...] = ()
    parts: tuple[Choice, ...] = ()
    layout: str = ""
    """That of all pieces. Empty for ops, whose pieces share none."""
    weighed: tuple[Weighed, ...] = ()
    """Alternatives that were measured, best first. A pin or preference may have chosen another than the best."""

    @property
    def id(self) -> str:
        """The id of the piece that serves one token."""
        return self.pieces[0].id

    def piece(self, num_tokens: int) -> Piece:
        """The piece that serves so many tokens."""
        return next(piece for piece in self.pieces if piece.start <= num_tokens < piece.stop)

    def difference(self, other: Choice, num_tokens: int) -> tuple[str, str] | None:
        """Where this choice and ``other``, for the same site, differ first at so many tokens: the ids of the two
        kernels, or of those of a part; ``None`` where all are the same."""
        mine, its = self.piece(num_tokens), other.piece(num_tokens)
        if mine.id != its.id:
            return mine.id, its.id
        parts = {part.op: part for part in other.parts if part.op in its.parts}
        differ = (part.difference(parts[part.op], num_tokens) for part in self.parts if part.op in parts)
        return next(filter(None, differ), None)

    def with_parts(self) -> Iterator[Choice]:
        """This choice, then those of its parts, and of theirs."""
        yield self
        for part in self.parts:
            yield from part.with_parts()


@dataclass(frozen=True, slots=True)
class Shadow:
    """What runs beside the choice for a site, in a share ``rate`` of all steps: its results are compared, and not
    used."""

    choice: Choice
    rate: float
    contract: OpContract | None = None
    """Of an op whose contract is known."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All choices for one model on one platform.

    ``choices`` are keyed by kind and site. ``wheels`` maps every distribution that takes part to its version; a worker
    checks that it runs the same. ``warnings`` are what a user must be told: candidates skipped, defaults overridden.
    ``tensor`` times ``pipeline`` processes hold the model between them; the choices are for the share of one.
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
    quantization: str = ""
    """Id of the quantization method that claims the checkpoint, if it is quantized."""
    quantization_implementation: str = ""
    tensor: int = 1
    pipeline: int = 1
    shadows: tuple[Shadow, ...] = ()
    traffic: tuple[tuple[int, float], ...] = ()
    """The share of steps by token count, by which :attr:`Choice.weighed` was."""
    traffic_source: str = ""

    @property
    def num_ranks(self) -> int:
        """How many processes hold the model between them."""
        return self.tensor * self.pipeline

    def ranks_beside(self, rank: int) -> range:
        """The ranks on the same device as ``rank``, which is one of them: they are dealt out to the devices in turn."""
        devices = min(self.platform.num_devices or self.num_ranks, self.num_ranks)
        return range(rank % devices, self.num_ranks, devices)

    def choice(self, kind: str, site: str) -> Choice:
        """The choice for a site. Raises ``KeyError`` where the model's facts named no such site."""
        for choice in self.choices:
            if choice.kind == kind and choice.site == site:
                return choice
        known = ", ".join(f"{c.kind}:{c.site}" for c in self.choices)
        raise KeyError(f"the plan has no {kind} site {site!r}; it has {known}")

    def shadow(self, kind: str, site: str) -> Shadow | None:
        """What runs beside the choice for a site, if anything."""
        return next((s for s in self.shadows if (s.choice.kind, s.choice.site) == (kind, site)), None)

    def all_choices(self) -> Iterator[Choice]:
        """Every choice, each followed by those of its parts."""
        for choice in self.choices:
            yield from choice.with_parts()

    @property
    def fingerprint(self) -> str:
        """A hash of all that decides what runs: machine, model, wheels, dtype and choices, but not the reasons for
        them.

        It keys caches of what was compiled or measured.
        """
        facts: dict[str, Any] = _plain(asdict(self))
        beside = (choice for shadow in self.shadows for choice in shadow.choice.with_parts())
        chosen = [
            (c.kind, c.site, c.query and _plain(asdict(c.query)), [(p.start, p.id) for p in c.pieces])
            for c in (*self.all_choices(), *beside)
        ]
        facts |= {"choices": chosen, "warnings": [], "shadows": [shadow.rate for shadow in self.shadows]}
        facts |= {"traffic": [], "traffic_source": ""}
        return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON, with the fingerprint."""
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

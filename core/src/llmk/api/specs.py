"""Specs: what hooks return. Frozen, torch-free, with implementations named lazily as ``"module:attribute"``."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Any, Literal

from llmk.api.checkpoint import Checkpoint
from llmk.api.platform import Host, PlatformFacts, Probe
from llmk.api.query import FIRST_FIELDS, ParserQuery, Query
from llmk.api.verdict import OK, Verdict

Capture = Literal["none", "decode", "full"]
"""Which steps with a kernel may be recorded as a graph and replayed: none, those of one token per request, or all.

Such a kernel waits for nothing, allocates through torch alone, and launches the same for equal shapes and upper bounds
(:class:`~llmk.api.cache.CacheStep` says what padding looks like)."""

LOCATION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
"""How ``implementation`` and its like are written: ``"module:attribute"``."""


class _Checked:
    """Base of the specs. A malformed one raises ``ValueError`` when it is made, where the mistake is."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for name in ("implementation", "describe", "prepare", "examples", "begin"):
            location = getattr(self, name, None)
            empty = location == "" and name in ("prepare", "examples", "begin")
            if location is not None and not empty and not LOCATION.fullmatch(location):
                raise ValueError(f"{name} = {location!r} is not of the form 'module:attribute'")


class Tier(IntEnum):
    """How close to the machine a kernel is written. Between two kernels that both may serve, the higher tier wins."""

    REFERENCE = 0
    PORTABLE = 1
    NATIVE = 2
    VENDOR = 3


@dataclass(frozen=True, slots=True)
class ArchRange:
    """Architectures of one ``arch_family`` in the order of their ``arch_version``: from ``first`` on, and before
    ``stop``. Empty: no such bound."""

    family: str
    first: tuple[int, ...] = ()
    stop: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.stop and self.first >= self.stop:
            raise ValueError(f"the range {self} is empty")

    def __contains__(self, facts: PlatformFacts) -> bool:
        version = facts.arch_version
        in_order = self.first <= version and (not self.stop or version < self.stop)
        return facts.arch_family == self.family and in_order

    def __str__(self) -> str:
        bounds = ((">=", self.first), ("<", self.stop))
        return " ".join([self.family, *(f"{sign} {'.'.join(map(str, at))}" for sign, at in bounds if at)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a kernel needs of a machine, declared. Empty means: nothing.

    ``platforms``: names, any of which will do. ``features``: all of them. ``archs``: architectures, any of which will
    do, by name (``"gfx942"``) or in ranges; what is in none of them is refused. ``dtypes``: engine dtypes, any.
    ``packages``: PEP 508 requirements, all of them.
    """

    platforms: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    archs: tuple[str | ArchRange, ...] = ()
    dtypes: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenBand:
    """The range of token counts, ``start`` to ``stop - 1``, in which a kernel is offered, and its score there."""

    start: int = 1
    stop: int = 1 << 31
    score: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSpec(_Checked):
    """A candidate for attention, linear, MoE or op sites.

    The ``implementation`` is, by kind:

    - attention: a class that follows :class:`~llmk.api.attention.AttentionBackend`;
    - linear: a function that follows :class:`~llmk.api.LinearKernel`;
    - moe: one that follows :class:`~llmk.api.MoEKernel`; where there is no ``prepare``, its ``weights`` are the
      parameters ``gate_up``, ``down`` and what else there is, as they are;
    - op: a function with the arguments that ``llmk.reference`` documents under the op's name; ops over attention take
      the layer's cache and what ``prepare`` made of the step as their last two positional arguments. An op that the
      core doesn't know is what its wheel says, by a kernel of ``Tier.REFERENCE`` that all others are compared with.

    It is held against that when it is loaded, arguments included. An op with ``parts`` is composite: its implementation
    is a factory that follows :class:`~llmk.api.CompositeOp`. Each part is an op of its own, selected in turn, but for
    the names that stand for what was already chosen at the op's own sites: ``"attention.write"`` and
    ``"attention.run"`` are methods of its attention backend, ``"linear"`` is its linear kernel.
    """

    id: str
    """``plugin.name``."""
    kind: str
    """``"attention"``, ``"linear"``, ``"moe"`` or ``"op"``."""
    implementation: str
    op: str = ""
    """For ``kind="op"``: the op's name."""
    tier: Tier
    score: int = 0
    needs: Needs = Needs()
    supports: Callable[[Any], Verdict] = lambda query: OK
    """Matches the query's shape; pure, torch-free. ``needs`` is checked apart from it."""
    knows: frozenset[str] = FIRST_FIELDS
    """Optional query fields that the kernel handles at other values than their defaults, or that ``supports`` refuses.
    Where another field differs from its default, the kernel is refused: one that the kernel leaves out of those of the
    first release, and one that was added later, which it must name (``FIRST_FIELDS | {"field"}``).

    Of an op, also facts that were added to it later. The op's reference names those that matter; where a query has
    one, all kernels of the op must know it. A model whose fact is at its neutral value leaves it out."""
    bands: tuple[TokenBand, ...] = (TokenBand(),)
    prepare: str = ""
    """For linear and MoE: ``"module:attribute"`` of a function that follows :class:`~llmk.api.Prepare`, run once after
    loading. It changes none of the tensors, which another kernel may share."""
    layout: str = "plain"
    """Attention: the cache layout's name. Linear and MoE: what ``prepare`` makes, by name; pieces of one site share
    it."""
    parts: tuple[str, ...] = ()
    deterministic: bool = False
    """Whether a row's result is the same bit for bit whatever else is in the batch (``docs/determinism.md``)."""
    capture: Capture = "none"
    host_cost_us: float = 0.0
    """Host time per step that the kernel spends on planning."""
    jit: bool = False
    """Whether it compiles when first used, and must be warmed up."""
    only_if_asked: str = ""
    """Why it is chosen only by pin, preference or measurement, or where nothing else can serve, if it is: it takes long
    to start, or is faster on some shapes alone."""
    examples: str = ""
    """For an op that the core doesn't know: ``"module:attribute"`` of an ``llmk.reference.op_examples.OpExamples``,
    which says what to call it with and what it changes in place. It holds for every kernel of the op. For a MoE kernel
    with an activation that the core doesn't know: of an ``llmk.reference.moe.MoEExamples``, which has it."""
    overrides: str = ""
    """Id of the spec that this one replaces, once the user's config consents."""
    summary: str = ""

    def __post_init__(self) -> None:
        # Not super(): with slots, the class that the compiler's cell names is not the one that instances have.
        _Checked.__post_init__(self)
        if (self.kind == "op") != bool(self.op):
            raise ValueError(
                f"kind {self.kind!r} with op {self.op!r}: an op must be named where kind is 'op', and only there"
            )
        if self.examples and self.kind not in ("op", "moe"):
            message = f"{self.id}: examples are for ops and experts, not for kind {self.kind!r}, whose inputs are known"
            raise ValueError(message)
        bands = sorted(self.bands, key=lambda band: band.start)
        if not bands or any(band.start < 1 or band.start >= band.stop for band in bands):
            raise ValueError(f"{self.id}: a token band is empty: {self.bands}")
        if any(left.stop > right.start for left, right in pairwise(bands)):
            raise ValueError(f"{self.id}: token bands overlap: {self.bands}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformSpec(_Checked):
    """A platform. ``probe`` must not initialise the device. ``known`` are facts for planning for a machine that is not
    here."""

    id: str
    name: str
    implementation: str
    probe: Callable[[Host], Probe]
    known: tuple[PlatformFacts, ...] = ()
    vouches: tuple[str, ...] = ()
    """Distributions, beside the spec's own and the core, whose kernels may win by tier here."""
    rank: int = 0
    """Among platforms that are usable here, the highest rank is used unless the config names one."""
    begin: str = ""
    """``"module:attribute"`` of ``f(index: int)``, which begins the device of local rank ``index`` as far as that goes
    without torch. An engine may call it in a thread while it imports torch; what it raises is none's error, since
    :meth:`Device.setup` comes later either way, perhaps before it has returned."""
    overrides: str = ""
    summary: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationSpec(_Checked):
    """A way in which weights are stored, or become stored while they load.

    ``claims`` says whether a checkpoint is stored so; of a method that is ``online``, whether it can quantize the plain
    weights of a checkpoint. ``implementation`` names a class that follows ``llmk.nn.Quantization``.
    """

    id: str
    name: str
    weight_format: str
    claims: Callable[[Checkpoint], Verdict]
    implementation: str
    online: bool = False
    """Whether it quantizes plain weights while they load, where ``model.quantization`` names it."""
    examples: str = ""
    """``"module:attribute"`` of what the conformance kit tries it on (``docs/plugins``); see :mod:`llmk_testing`."""
    overrides: str = ""
    summary: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec(_Checked):
    """A model family.

    ``describe`` names a function that follows :class:`~llmk.api.DescribeModel`, ``implementation`` a class that follows
    ``llmk.nn.Model``. ``architectures`` are values of ``config.json``'s; ``"*"`` claims what no other spec
    does.
    """

    id: str
    architectures: tuple[str, ...]
    implementation: str
    describe: str
    deterministic: bool = False
    """Whether a token's result is the same bit for bit whatever else is in the batch, where the plan's kernels are
    deterministic: what the model computes itself takes each token by itself."""
    examples: str = ""
    """``"module:attribute"`` of what the conformance kit tries it on (``docs/plugins``); see :mod:`llmk_testing`."""
    overrides: str = ""
    summary: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParserSpec(_Checked):
    """A reasoning or tool parser, by the hook that returns it. ``claims`` recognises checkpoints that speak its
    dialect."""

    id: str
    name: str
    implementation: str
    claims: Callable[[ParserQuery], Verdict]
    score: int = 0
    special_tokens: bool = False
    """Whether the dialect's markers are special tokens, which the text must then keep for the parser to see them."""
    examples: str = ""
    """``"module:attribute"`` of what the conformance kit tries it on (``docs/plugins``); see :mod:`llmk_testing`."""
    overrides: str = ""
    summary: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IOProcessorSpec(_Checked):
    """Turns requests of another shape into prompts, and outputs back. ``implementation`` names a class that follows
    :class:`~llmk.api.IOProcessor`; it is imported when a request first names the processor, by ``name`` or ``id``.
    ``supports`` says whether it can serve a checkpoint."""

    id: str
    name: str
    implementation: str
    supports: Callable[[Checkpoint], Verdict] = lambda checkpoint: OK
    examples: str = ""
    """``"module:attribute"`` of what the conformance kit tries it on (``docs/plugins``); see :mod:`llmk_testing`."""
    overrides: str = ""
    summary: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySpec(_Checked):
    """A scheduling policy. ``implementation`` names a class that follows :class:`~llmk.api.SchedulingPolicy`."""

    id: str
    name: str
    implementation: str
    overrides: str = ""
    summary: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsProcessorSpec(_Checked):
    """Changes the logits of requests that name it by ``id``. ``implementation`` names a class that follows
    :class:`~llmk.api.LogitsProcessor`; it is imported when a request first does."""

    id: str
    implementation: str
    examples: str = ""
    """``"module:attribute"`` of what the conformance kit tries it on (``docs/plugins``); see :mod:`llmk_testing`."""
    overrides: str = ""
    summary: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatLoggerSpec(_Checked):
    """Takes the server's numbers somewhere. ``implementation`` names a class that follows
    :class:`~llmk.api.StatLogger`."""

    id: str
    name: str
    implementation: str
    examples: str = ""
    """``"module:attribute"`` of what the conformance kit tries it on (``docs/plugins``); see :mod:`llmk_testing`."""
    overrides: str = ""
    summary: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSpec(_Checked):
    """A command of ``llmk``, by the words that call it: ``"profile"``, or ``"plugins check"`` for an action of
    ``llmk plugins``. ``implementation`` names a class that follows :class:`~llmk.api.Command`."""

    id: str
    name: str
    implementation: str
    overrides: str = ""
    summary: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedConfigs:
    """A folder inside a package with measurements of kernels, as ``llmk tune`` writes them, by device.

    They count on devices of their name where the user has measured nothing, and where the platform vouches for the
    wheel that ships them. ``versions`` in the files names those distributions that, in another version, would make them
    worthless.
    """

    id: str
    package: str
    folder: str
    overrides: str = ""


Spec = (
    KernelSpec
    | PlatformSpec
    | QuantizationSpec
    | ModelSpec
    | ParserSpec
    | IOProcessorSpec
    | LogitsProcessorSpec
    | PolicySpec
    | StatLoggerSpec
    | CommandSpec
    | TunedConfigs
)
Supports = Callable[[Query], Verdict]

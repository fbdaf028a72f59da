"""Specs: the return types of hooks. Frozen and torch-free; implementations are given as ``"module:attribute"`` and
imported only when they are chosen."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise
from typing import Any, ClassVar, Literal

from llmk.api.checkpoint import Checkpoint
from llmk.api.platform import Host, PlatformFacts, Probe
from llmk.api.query import FIRST_FIELDS, ParserQuery, Query
from llmk.api.ranks import RankRules
from llmk.api.verdict import OK, Verdict

Capture = Literal["none", "decode", "full"]
"""Which steps with a kernel may be captured as a graph and replayed: none, those with one token per request, or all.

A kernel that may be captured never synchronizes, allocates only through torch, and makes the same launches for equal
shapes and upper bounds (:class:`~llmk.api.cache.CacheStep` describes the padding)."""

GIVEN_PARTS: Mapping[str, str] = {"attention.write": "attention", "attention.run": "attention", "linear": "linear"}
"""Parts of composite ops that stand for what was chosen at the op's own sites: by name, the kind of the site."""

LOCATION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
"""The form of ``implementation`` and similar fields: ``"module:attribute"``."""


class CheckedSpec:
    """Base of the specs. An invalid spec raises ``ValueError`` when it is created, where the mistake is."""

    __slots__ = ()

    _optional_locations: ClassVar[tuple[str, ...]] = ()
    """Locations that may be empty, other than those of every spec."""

    def __post_init__(self) -> None:
        optional = ("prepare", "examples", "early_setup", *self._optional_locations)
        for name in ("implementation", "describe", "tree", "prepare", "examples", "early_setup"):
            location = getattr(self, name, None)
            empty = location == "" and name in optional
            if location is not None and not empty and not LOCATION.fullmatch(location):
                raise ValueError(f"{name} = {location!r} is not of the form 'module:attribute'")


class Tier(IntEnum):
    """How close to the hardware a kernel is written. Of two kernels that support a query, the higher tier is chosen."""

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
    """Declared requirements of a kernel. Empty fields require nothing.

    ``platforms``: names, one of which must match. ``features``: all are required. ``archs``: architectures, one of
    which must match, by name (``"gfx942"``) or by range. ``dtypes``: engine dtypes, one of which must match.
    ``packages``: PEP 508 requirements, all of which must be met. A vendor's distribution of another name meets one, if
    it has the package of that name.
    """

    platforms: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    archs: tuple[str | ArchRange, ...] = ()
    dtypes: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenBand:
    """A range of token counts, ``start`` to ``stop - 1``, that a kernel supports, and its score in that range."""

    start: int = 1
    stop: int = 1 << 31
    score: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSpec(CheckedSpec):
    """A candidate for attention, linear, MoE or op sites.

    The ``implementation`` is, by kind:

    - attention: a class that implements :class:`~llmk.api.attention.AttentionBackend`;
    - linear: a function that implements :class:`~llmk.api.LinearKernel`;
    - moe: a function that implements :class:`~llmk.api.MoEKernel`; without a ``prepare``, its ``weights`` are the
      parameters (``gate_up``, ``down``, …) themselves;
    - op: a function of the arguments that the op's :class:`OpContract` names, with the same results as the kernel of
      ``Tier.REFERENCE`` for the same op.

    The implementation is checked against this when it is loaded, arguments included. An op with ``parts`` is composite:
    its implementation is a factory that implements :class:`~llmk.api.CompositeOp`. Each part is an op for which a
    kernel is chosen separately, except for three names that refer to kernels chosen at the op's own sites:
    ``"attention.write"`` and ``"attention.run"`` are methods of the attention backend, ``"linear"`` is the linear
    kernel.
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
    """Whether the kernel supports a query's shapes and options. Pure and torch-free; ``needs`` is checked
    separately."""
    knows: frozenset[str] = FIRST_FIELDS
    """Optional query fields that the kernel handles at other values than their defaults, or that ``supports`` refuses.
    If another field differs from its default, the kernel is refused: a field of the first release that the kernel
    leaves out, or a field that was added later, which it must name (``FIRST_FIELDS | {"field"}``).

    For experts, also the query's ``facts`` that it takes. For an op, also facts that were added to the op later: if a
    query has one that the op's reference names, every kernel must know it. Neutral facts are left out."""
    bands: tuple[TokenBand, ...] = (TokenBand(),)
    prepare: str = ""
    """For linear and MoE: ``"module:attribute"`` of a function that implements :class:`~llmk.api.Prepare`, called once
    after loading. It must not change the tensors, which other kernels may share. On the host they may be mapped from
    the checkpoint's file, so they, like weights without a ``prepare``, are aligned only to their element size."""
    layout: str = "plain"
    """The name of the layout of an attention's cache, or of what ``prepare`` returns; pieces of a site share it."""
    host_lengths: bool = False
    """Attention: whether the backend needs ``CacheStep.host_query_lens`` and ``host_seq_lens`` of steps that are not
    captured: then no step has a request whose length only the device knows. Optional use is not declared."""
    parts: tuple[str, ...] = ()
    deterministic: bool = False
    """Whether a row's result is bitwise independent of the other rows in the batch (``docs/determinism.md``). For
    an op with ``parts``, this and ``capture`` don't cover the parts."""
    capture: Capture = "none"
    host_cost_us: float = 0.0
    """Host time that the kernel needs for planning, in microseconds per step."""
    jit: bool = False
    """Whether the kernel is compiled at its first use, so that it needs a warm-up."""
    opt_in: str = ""
    """If not empty, the kernel is chosen only by pin, preference or measurement, or if no other supports the query; the
    text is the reason, such as a long compilation, or that it is faster only for some shapes."""
    examples: str = ""
    """For a MoE kernel with an activation, a scoring or facts of its own: ``"module:attribute"`` of an
    ``llmk.reference.moe.MoEExamples`` of them all. An op's examples are those of its :class:`OpContract`."""
    overrides: str = ""
    """Id of the spec that this one replaces, if the user's configuration permits it."""
    summary: str = ""

    def __post_init__(self) -> None:
        # Not super(): with slots, the class that the compiler's cell names is not the one that instances have.
        CheckedSpec.__post_init__(self)
        if (self.kind == "op") != bool(self.op):
            raise ValueError(
                f"kind {self.kind!r} with op {self.op!r}: an op must be named where kind is 'op', and only there"
            )
        if self.examples and self.kind != "moe":
            message = f"{self.id}: examples are only for kind 'moe', not for kind {self.kind!r}"
            raise ValueError(f"{message}; those of an op are its OpContract's")
        bands = sorted(self.bands, key=lambda band: band.start)
        if not bands or any(band.start < 1 or band.start >= band.stop for band in bands):
            raise ValueError(f"{self.id}: a token band is empty: {self.bands}")
        if any(left.stop > right.start for left, right in pairwise(bands)):
            raise ValueError(f"{self.id}: token bands overlap: {self.bands}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformSpec(CheckedSpec):
    """A platform. ``probe`` must not initialise the device. ``known`` are facts of other machines, for planning for
    them (``llmk explain --on``)."""

    id: str
    name: str
    implementation: str
    probe: Callable[[Host], Probe]
    known: tuple[PlatformFacts, ...] = ()
    vouches: tuple[str, ...] = ()
    """Distributions whose kernels may be chosen by tier on this platform, as the spec's own and the core's are."""
    rank: int = 0
    """Of a machine's usable platforms, the one with the highest rank is used, unless the config names one."""
    early_setup: str = ""
    """``"module:attribute"`` of ``f(index: int)``, which initialises the device of local rank ``index`` as far as
    possible without torch. The engine's process may call it in a thread while it imports torch. Exceptions are ignored,
    since :meth:`Device.setup` is always called later, possibly before ``f`` has returned."""
    ranks: RankRules = field(default_factory=RankRules)
    """Rules for the processes (ranks) that run one model together on this platform."""
    examples: str = ""
    """``"module:attribute"`` of test inputs for the conformance kit (``docs/plugins``); see :mod:`llmk_testing`."""
    overrides: str = ""
    summary: str = ""


ReadsModule = Callable[[str], Verdict | None]
"""Whether a quantization method reads the weight of a module, which is named as in the checkpoint
(``"model.layers.0.mlp.experts.0.up_proj"``). ``None``: the checkpoint stores the weight plain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationSpec(CheckedSpec):
    """A quantization method: a format of weights in checkpoints, or a conversion of plain weights while they load.

    ``claims`` returns whether a checkpoint has modules in this format; for an ``online`` method, whether it can
    quantize the checkpoint's plain weights. Several methods may claim a checkpoint whose modules have several formats.
    ``implementation`` names a class that implements ``llmk.nn.Quantization``.
    """

    id: str
    name: str
    weight_format: str
    claims: Callable[[Checkpoint], Verdict]
    implementation: str
    modules: Callable[[Checkpoint], ReadsModule] = lambda checkpoint: lambda module: OK
    """Returns, for a checkpoint that the method claims, which of its modules the method reads. Raises
    :class:`~llmk.api.CheckpointError` if the checkpoint's config is not valid. Modules that are never quantized
    (routers) are not queried, and the LM head only with ``heads``."""
    heads: bool = False
    """Whether ``modules`` is asked about the LM head too, ``"lm_head"``, also where it is tied to the embedding: then
    the format is that of the embedding's table."""
    weight_bits: float = 8.0
    """Bits per element of a weight in this format, scales included."""
    online: bool = False
    """Whether the method quantizes plain weights while they load, if ``model.quantization`` names it."""
    examples: str = ""
    """``"module:attribute"`` of test inputs for the conformance kit (``docs/plugins``); see :mod:`llmk_testing`."""
    overrides: str = ""
    summary: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec(CheckedSpec):
    """A model family.

    ``tree`` names a function that implements ``llmk.tree.MakeTree``: from a checkpoint's config to a tree of specs, of
    which facts and modules are made. A model that has its own modules gives no tree, but ``describe``, a function that
    implements :class:`~llmk.api.DescribeModel`, and ``implementation``, a class that implements ``llmk.nn.Model``.
    ``ahead`` names one that implements ``llmk.tree.MakeAhead``: from the config to heads that predict further tokens.
    ``architectures`` are values of that key in ``config.json``; ``"*"`` matches any that no other spec supports.
    """

    _optional_locations: ClassVar[tuple[str, ...]] = ("tree", "implementation", "describe", "ahead")

    id: str
    architectures: tuple[str, ...]
    tree: str = ""
    implementation: str = ""
    describe: str = ""
    deterministic: bool = False
    """Whether a token's result is bitwise independent of the rest of the batch if the plan's kernels are deterministic:
    the model's own computations must treat each token separately."""
    examples: str = ""
    """``"module:attribute"`` of test inputs for the conformance kit (``docs/plugins``); see :mod:`llmk_testing`."""
    overrides: str = ""
    summary: str = ""
    ahead: str = ""

    def __post_init__(self) -> None:
        CheckedSpec.__post_init__(self)
        if bool(self.tree) == bool(self.implementation) or bool(self.describe) != bool(self.implementation):
            found = " and ".join(n for n in ("tree", "implementation", "describe") if getattr(self, n)) or "nothing"
            raise ValueError(f"{self.id} gives {found}; a model gives a tree, or implementation and describe")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParserSpec(CheckedSpec):
    """A reasoning or tool parser, depending on the hook that returns it. ``claims`` recognises checkpoints whose
    dialect the parser supports."""

    id: str
    name: str
    implementation: str
    claims: Callable[[ParserQuery], Verdict]
    score: int = 0
    special_tokens: bool = False
    """Whether the dialect's markers are special tokens, which must then not be skipped in detokenization."""
    markers: tuple[str, str] = ("", "")
    """Reasoning parsers: the texts that open and close a block, so that a grammar can start behind it. Empty if there
    are no such texts, or several pairs: without them, a grammar leaves no room for thoughts."""
    writer: str = ""
    """Tool parsers: ``"module:attribute"`` of the :class:`~llmk.api.CallWriter` of the dialect, an instance."""
    examples: str = ""
    """``"module:attribute"`` of test inputs for the conformance kit (``docs/plugins``); see :mod:`llmk_testing`."""
    overrides: str = ""
    summary: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteSpec(CheckedSpec):
    """A route of an HTTP API. ``implementation`` names a class that implements :class:`~llmk.api.ApiRoute`. Streamed
    responses are server-sent events (``"sse"``), or JSON objects in lines (``"ndjson"``). ``any_content_type``: clients
    of the API send JSON without saying so, or as a form, as curl does; it is read unless a web page sent it."""

    id: str
    method: Literal["GET", "HEAD", "POST"]
    path: str
    implementation: str
    framing: Literal["sse", "ndjson"] = "sse"
    any_content_type: bool = False
    examples: str = ""
    """``"module:attribute"`` of test inputs for the conformance kit (``docs/plugins``); see :mod:`llmk_testing`."""
    overrides: str = ""
    summary: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IOProcessorSpec(CheckedSpec):
    """An IO processor. ``implementation`` names a class that implements :class:`~llmk.api.IOProcessor`; it is imported
    when a request first names it, by ``name`` or ``id``. ``supports`` returns whether it supports a checkpoint."""

    id: str
    name: str
    implementation: str
    supports: Callable[[Checkpoint], Verdict] = lambda checkpoint: OK
    examples: str = ""
    """``"module:attribute"`` of test inputs for the conformance kit (``docs/plugins``); see :mod:`llmk_testing`."""
    overrides: str = ""
    summary: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySpec(CheckedSpec):
    """A scheduling policy. ``implementation`` names a class that implements :class:`~llmk.api.SchedulingPolicy`."""

    id: str
    name: str
    implementation: str
    examples: str = ""
    """``"module:attribute"`` of test inputs for the conformance kit (``docs/plugins``); see :mod:`llmk_testing`."""
    overrides: str = ""
    summary: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatLoggerSpec(CheckedSpec):
    """A stat logger, which exports the server's metrics. ``implementation`` names a class that implements
    :class:`~llmk.api.StatLogger`."""

    id: str
    name: str
    implementation: str
    examples: str = ""
    """``"module:attribute"`` of test inputs for the conformance kit (``docs/plugins``); see :mod:`llmk_testing`."""
    overrides: str = ""
    summary: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSpec(CheckedSpec):
    """A command of ``llmk``. ``name`` is how it is called: ``"profile"``, or ``"plugins check"`` for an action of a
    group. ``implementation`` names a class that implements :class:`~llmk.api.Command`."""

    id: str
    name: str
    implementation: str
    examples: str = ""
    """``"module:attribute"`` of test inputs for the conformance kit (``docs/plugins``); see :mod:`llmk_testing`."""
    overrides: str = ""
    summary: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedConfigs:
    """A folder inside a package with measurements of kernels per device, in the format that ``llmk tune`` writes.

    They are used on devices of the same name if the user has no own measurements and the platform vouches for the wheel
    that ships them. ``versions`` in the files are the distributions whose other versions make the measurements invalid.
    """

    id: str
    package: str
    folder: str
    overrides: str = ""


Supports = Callable[[Query], Verdict]

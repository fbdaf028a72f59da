"""Queries: the shapes, dtypes and options that a site of the model needs a kernel for, on one platform."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from llmk.api.cache import vector_bytes
from llmk.api.checkpoint import Checkpoint
from llmk.api.facts import AttentionFacts, ModelFacts, MoEFacts
from llmk.api.platform import PlatformFacts

if TYPE_CHECKING:
    import torch

N = TypeVar("N", int, "torch.Tensor")

FIRST_FIELDS: frozenset[str] = frozenset(
    {
        *("sliding_window", "softcap", "sinks", "causal", "latent_dim"),
        *("bias", "weight_format"),
        *("activation", "renormalize", "scoring", "scaling", "num_groups", "top_groups", "group_scoring"),
        *("attention", "cache_layout", "linear", "weight_layout"),
    }
)
"""The optional query fields of the first release: what a kernel knows that declares nothing. A field that is added
later stays out of it, so that kernels which were built before it are refused where it is not at its default."""

BOUNDS: frozenset[str] = frozenset({"max_seq_len"})
"""Query fields that change no result, so that kernels need not know them, and measurements hold for any value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Base of all queries.

    The default of a field is its neutral value: results are the same as without the field. If a field has another
    value, kernels that don't declare that they know it are refused (``KernelSpec.knows``).

    ``platform`` are the facts of the machine that is planned for, ``site`` the place in the model. ``dtype`` is the
    engine's dtype; models and kernels never use the checkpoint's own. ``deterministic`` is whether batch invariance is
    required.
    """

    kind: ClassVar[str] = ""

    platform: PlatformFacts
    site: str
    dtype: str
    deterministic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionQuery(Query):
    """Paged attention over one cache group. The fields are documented in :class:`~llmk.api.facts.AttentionFacts`.

    ``max_seq_len`` is the longest sequence, in tokens (0: unknown), for kernels whose offsets or tables are bounded: a
    kernel that refuses a length refuses all that are longer.
    """

    kind: ClassVar[str] = "attention"

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    cache_dtype: str
    scale: float
    sliding_window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    causal: bool = True
    latent_dim: int | None = None
    value_dim: int | None = None
    max_seq_len: int = 0
    chunked: bool = False
    alibi: bool = False

    def first_visible(self, position: N) -> N:
        """The first token that the token at ``position`` attends to, for an integer or a tensor of integers; with a
        window, below 0 where all earlier tokens are in it."""
        if self.sliding_window is None:
            return position * 0
        if self.chunked:
            return position // self.sliding_window * self.sliding_window
        return position - self.sliding_window + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearQuery(Query):
    """``y = x @ weight.T + bias``, with the weight stored in ``weight_format``: ``"plain"``, or the format of a
    quantization method. With ``lookup``, which plain weights never have, the weight is an embedding's table too: what
    ``prepare`` returns follows :class:`~llmk.api.LooksUp`."""

    kind: ClassVar[str] = "linear"

    in_features: int
    out_features: int
    bias: bool = False
    weight_format: str = "plain"
    lookup: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MoEQuery(Query):
    """A mixture of experts, from router logits to the weighted sum of expert outputs. The fields are documented in
    :class:`~llmk.api.facts.MoEFacts`."""

    kind: ClassVar[str] = "moe"

    num_experts: int
    top_k: int
    hidden_size: int
    intermediate_size: int
    activation: str = "silu"
    renormalize: bool = True
    scoring: str = "softmax"
    scaling: float = 1.0
    bias: bool = False
    num_groups: int = 1
    top_groups: int = 1
    group_scoring: str = "max"
    weight_format: str = "plain"
    activation_alpha: float = 1.0
    activation_limit: float | None = None
    up_offset: float = 0.0
    gated: bool = True
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpQuery(Query):
    """An op by name.

    For an op with an attention site, ``attention`` is the id of the backend chosen there and ``cache_layout`` its cache
    layout. For an op with a linear site, ``linear`` is the id of the kernel chosen there and ``weight_layout`` the
    layout of its prepared weight.
    """

    kind: ClassVar[str] = "op"

    op: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    attention: str | None = None
    cache_layout: str | None = None
    linear: str | None = None
    weight_layout: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParserQuery:
    """Input of :attr:`llmk.api.ParserSpec.claims`: whether a parser supports the dialect of a checkpoint."""

    kind: ClassVar[str] = "parser"

    checkpoint: Checkpoint


Q = TypeVar("Q", bound=Query)

_FIRST_OPTIONS = (
    "top_k",
    "renormalize",
    "activation",
    "scoring",
    "scaling",
    "num_groups",
    "top_groups",
    "group_scoring",
)
_LATER_OPTIONS = ("activation_alpha", "activation_limit", "up_offset", "gated")
_NEUTRAL_OPTIONS = {option.name: option.default for option in fields(MoEQuery)}


def make_query(query_type: type[Q], facts: object, **values: Any) -> Q:
    """A query whose fields are taken from the attributes of ``facts`` with the same names, and from ``values``."""
    names = {f.name for f in fields(query_type)} & set(getattr(facts, "__slots__", ()))
    return query_type(**({name: getattr(facts, name) for name in names} | values))


def moe_options(site: MoEFacts | MoEQuery) -> dict[str, Any]:
    """The keyword arguments of a MoE kernel (:class:`~llmk.api.MoEKernel`) for a site. Fields that were added after the
    first release are left out at their default, so that kernels which don't know them need not take them; the site's
    ``facts`` are among them."""
    later = {name: value for name in _LATER_OPTIONS if (value := getattr(site, name)) != _NEUTRAL_OPTIONS[name]}
    return {name: getattr(site, name) for name in _FIRST_OPTIONS} | later | dict(site.facts)


def expanded_size(site: MoEFacts | MoEQuery) -> int:
    """Features that an expert's first projection has, those of its gate included."""
    return site.intermediate_size * (2 if site.gated else 1)


def cached_bytes(site: AttentionFacts | AttentionQuery, cache_dtype: str) -> int:
    """Bytes that one layer of an attention site caches per token, without padding."""
    if site.latent_dim:
        return vector_bytes(cache_dtype, site.head_dim)
    sizes = (site.head_dim, site.value_dim or site.head_dim)
    return site.num_kv_heads * sum(vector_bytes(cache_dtype, size) for size in sizes)


def shared_block_size(facts: ModelFacts, block_size: int, cache_dtype: str) -> int:
    """Tokens per block of a model's attention caches.

    In a model with both attention and recurrent layers, all blocks come from one pool and have one size: the result is
    the smallest multiple of ``block_size`` whose block is at least as large as a recurrent layer's state.
    """
    states = [sum(tensor.num_bytes for tensor in site.tensors) for site in facts.recurrent]
    if not (states and facts.attention):
        return block_size
    widest = max(cached_bytes(site, cache_dtype) for site in facts.attention)
    return -(-max(states) // (block_size * widest)) * block_size


def site_queries(facts: ModelFacts, *, block_size: int, cache_dtype: str, **common: Any) -> list[Query]:
    """The queries of a model's attention, linear and MoE sites. ``common`` are the fields of :class:`Query` except
    ``site``.

    ``block_size`` is a lower bound for attention sites (:func:`shared_block_size`).
    """
    queries: list[Query] = []
    block_size = shared_block_size(facts, block_size, cache_dtype)
    for site in facts.attention:
        scale = site.head_dim**-0.5 if site.scale is None else site.scale
        cache: dict[str, Any] = {"block_size": block_size, "cache_dtype": cache_dtype, "scale": scale}
        cache["max_seq_len"] = facts.max_model_len
        queries.append(make_query(AttentionQuery, site, **cache, **common))
    for linear in facts.linear:
        lookup = linear.tied and linear.weight_format != "plain"
        queries.append(make_query(LinearQuery, linear, lookup=lookup, **common))
    queries += [make_query(MoEQuery, moe, **common) for moe in facts.moe]
    return queries

"""Queries: what a site of the model asks of the candidates of its kind, on one platform."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeVar

from llmk.api.cache import DTYPE_BYTES
from llmk.api.checkpoint import Checkpoint
from llmk.api.facts import ModelFacts
from llmk.api.platform import PlatformFacts

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Base of all queries.

    The default of a field is its neutral value: what is computed is as if there were no such field. Where a field is
    at another value, a kernel is refused that doesn't declare that it knows it (``KernelSpec.knows``).

    ``platform`` are the facts of the machine that is planned for, ``site`` the place in the model, ``dtype`` the
    engine's dtype (the only one: no model or kernel reads the checkpoint's), ``deterministic`` whether batch invariance
    is asked for.
    """

    kind: ClassVar[str] = ""

    platform: PlatformFacts
    site: str
    dtype: str
    deterministic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionQuery(Query):
    """Paged attention over one cache group."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearQuery(Query):
    """``y = x @ weight.T + bias``, the weight stored in ``weight_format`` (``"plain"``, or a quantization method's
    format)."""

    kind: ClassVar[str] = "linear"

    in_features: int
    out_features: int
    bias: bool = False
    weight_format: str = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class MoEQuery(Query):
    """A mixture of experts, from router output to the weighted sum; the fields are those of
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


@dataclass(frozen=True, slots=True, kw_only=True)
class OpQuery(Query):
    """An op by name.

    ``attention`` and ``cache_layout`` name the backend chosen at the op's attention site and its layout, ``linear`` and
    ``weight_layout`` the kernel chosen at its linear site and what that keeps its weight in, where the op has such a
    site.
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
    """Asks a reasoning or tool parser whether it speaks a checkpoint's dialect."""

    kind: ClassVar[str] = "parser"

    checkpoint: Checkpoint


Q = TypeVar("Q", bound=Query)


def ask_of(query_type: type[Q], facts: object, **values: Any) -> Q:
    """A query of ``query_type`` with all that ``facts`` say under the names of its fields, and ``values`` besides."""
    names = {f.name for f in fields(query_type)} & set(getattr(facts, "__slots__", ()))
    return query_type(**({name: getattr(facts, name) for name in names} | values))


def shared_block_size(facts: ModelFacts, block_size: int, cache_dtype: str) -> int:
    """Tokens per block of a model's attention caches: ``block_size``, or so many times that that a block holds as much
    as a recurrent layer's state, where there are both: their blocks come from one pool, and are of one size.
    """
    states = [sum(tensor.num_bytes for tensor in site.tensors) for site in facts.recurrent]
    if not (states and facts.attention):
        return block_size
    rows = [site.head_dim if site.latent_dim else 2 * site.num_kv_heads * site.head_dim for site in facts.attention]
    return -(-max(states) // (block_size * max(rows) * DTYPE_BYTES[cache_dtype])) * block_size


def site_queries(
    facts: ModelFacts, *, block_size: int, cache_dtype: str, weight_format: str = "plain", **common: Any
) -> list[Query]:
    """What the attention, linear and MoE sites of a model ask. ``common`` are the fields of :class:`Query` but
    ``site``.

    ``block_size`` is what attention sites have at least (:func:`shared_block_size`), ``weight_format`` that of the
    sites that the facts call quantizable.
    """
    queries: list[Query] = []
    block_size = shared_block_size(facts, block_size, cache_dtype)
    for site in facts.attention:
        scale = site.head_dim**-0.5 if site.scale is None else site.scale
        cache = {"block_size": block_size, "cache_dtype": cache_dtype, "scale": scale}
        queries.append(ask_of(AttentionQuery, site, **cache, **common))
    for linear in facts.linear:
        stored = weight_format if linear.quantizable else "plain"
        queries.append(ask_of(LinearQuery, linear, weight_format=stored, **common))
    queries += [ask_of(MoEQuery, moe, weight_format=weight_format, **common) for moe in facts.moe]
    return queries

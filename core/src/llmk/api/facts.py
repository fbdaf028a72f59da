"""What a model is made of, told without building it: the sites that need a kernel, and what they look like.

A model plugin's ``describe(checkpoint)`` returns :class:`ModelFacts`; the resolver turns each site into a query. A
*site* is a place in the model that binds one kernel (``"qkv"``, ``"attention"``, ``"add_rms_norm"``); all layers with
equal facts share it.

Facts are those of the whole model, and say how several processes may cut it; :func:`llmk.api.sharded` makes of them the
facts of one process's share.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from llmk.api.cache import StateTensor
from llmk.api.checkpoint import Checkpoint

Cut = Literal["", "column", "row", "vocab"]
"""How tensor parallelism cuts a product: not at all; by output features; by input features, so that the results must be
added up; or by output features that are tokens, whose shares are padded to one size."""
Way = Literal["tensor", "pipeline"]
"""Ways in which several processes hold a model between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionFacts:
    """An attention site."""

    site: str = "attention"
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    sliding_window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    causal: bool = True
    scale: float | None = None
    """Multiplies the logits; ``head_dim ** -0.5`` where ``None``."""
    latent_dim: int | None = None
    """Latent attention: values are the first so many entries of the keys and are not stored apart; ``None``: they are,
    and as wide as the keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentFacts:
    """Layers that keep a state of fixed size instead of something for each token. ``tensors`` are one layer's; what is
    computed with them are op sites of their own."""

    site: str
    num_layers: int
    tensors: tuple[StateTensor, ...]
    units: int = 0
    """Groups of heads, which stay whole, by which tensor parallelism cuts the layers; 0: not at all."""
    divided: tuple[int, ...] = ()
    """The dimension by which each of ``tensors`` is cut then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearFacts:
    """A linear site: ``count`` products of ``[tokens, in_features]`` with ``[out_features, in_features]``."""

    site: str
    in_features: int
    out_features: int
    bias: bool = False
    count: int = 1
    quantizable: bool = True
    parallel: Cut = ""
    units: tuple[tuple[int, int], ...] = ()
    """Of a product cut by ``"column"``: number and output features of the units (heads) in each packed part, which stay
    whole. A part of fewer units than there are processes is repeated. Empty: one part, of units of one feature."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoEFacts:
    """A mixture-of-experts site: ``count`` blocks whose router and experts look alike."""

    site: str
    num_experts: int
    top_k: int
    hidden_size: int
    intermediate_size: int
    """Of one expert."""
    activation: str = "silu"
    count: int = 1
    renormalize: bool = True
    """Whether the weights of the chosen experts are divided by their sum."""
    scoring: str = "softmax"
    """How the router's logits become scores: ``"softmax"`` over all experts, or ``"sigmoid"`` of each."""
    scaling: float = 1.0
    """Multiplies the weights at the end."""
    bias: bool = False
    """Whether the experts' products have biases."""
    num_groups: int = 1
    """Groups of experts that follow one another; only the best ``top_groups`` of them take part for each token."""
    top_groups: int = 1
    group_scoring: str = "max"
    """How a group is scored: by its best expert (``"max"``), or by its two best, added (``"top2_sum"``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpFacts:
    """An op site. ``op`` is the op's name, ``facts`` what its kernels match on (sizes, activation names, …)."""

    site: str
    op: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    attention: str | None = None
    """The attention site whose backend and cache the op works with, if any."""
    linear: str | None = None
    """The linear site whose product the op contains, if any."""
    divided: tuple[str, ...] = ()
    """Keys of those ``facts`` that are sizes of something that tensor parallelism cuts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Everything that planning needs of a model. Sizes are in elements, ``max_model_len`` in tokens."""

    architecture: str
    model: str
    """Id of the :class:`~llmk.api.specs.ModelSpec` that described it."""
    num_layers: int
    hidden_size: int
    vocab_size: int
    max_model_len: int
    dtype: str
    """The checkpoint's own dtype: ``"bfloat16"``, ``"float16"`` or ``"float32"``."""
    num_parameters: int
    attention: tuple[AttentionFacts, ...] = ()
    recurrent: tuple[RecurrentFacts, ...] = ()
    linear: tuple[LinearFacts, ...] = ()
    moe: tuple[MoEFacts, ...] = ()
    ops: tuple[OpFacts, ...] = ()
    parallel: tuple[Way, ...] = ()
    """The ways in which the model's implementation knows to be cut."""
    default_model_len: int = 0
    """Tokens that are served unless the configuration says otherwise, where these are fewer than ``max_model_len``,
    since what is computed of a short text depends on the length that is served. 0: all of them."""
    default_why: str = ""
    """Why these, in a sentence for the log."""


class DescribeModel(Protocol):
    """What ``ModelSpec.describe`` names."""

    @abstractmethod
    def __call__(self, checkpoint: Checkpoint) -> ModelFacts:
        """The facts of a checkpoint's model. Imports no torch. Raises :class:`~llmk.api.LlmkError` for a checkpoint
        that can't be served."""
        ...

"""Facts about a model that are known without building it: the sites that need a kernel, and their shapes.

A model plugin's ``describe(checkpoint)`` returns :class:`ModelFacts`; the resolver makes a query of each site. A *site*
is a place in the model that binds one kernel (``"qkv"``, ``"attention"``, ``"add_rms_norm"``); all layers with equal
facts share it.

Facts describe the whole model, and how it can be sharded; :func:`llmk.api.sharded` computes the facts of one rank's
shard.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from llmk.api.cache import StateTensor
from llmk.api.checkpoint import Checkpoint

Cut = Literal["", "column", "row", "vocab"]
"""How tensor parallelism shards a linear layer: not at all; by output features; by input features, with an all-reduce
of the results; or by output features that are vocabulary entries, with shards padded to equal size."""
Way = Literal["tensor", "pipeline"]
"""Kinds of model parallelism."""


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
    """The factor of the logits; ``None`` means ``head_dim ** -0.5``."""
    latent_dim: int | None = None
    """For latent attention: values are the first ``latent_dim`` elements of the keys and are not stored separately.
    ``None``: values are stored."""
    value_dim: int | None = None
    """Elements of a head's value; ``None``: as many as of its key, ``head_dim``."""
    alibi: bool = False
    """Whether each head adds to the logits its slope times the distance of the key, a number from 0 (the token itself)
    downwards, after the soft cap (ALiBi, arXiv:2108.12409)."""
    chunked: bool = False
    """Whether texts are cut into chunks of ``sliding_window`` tokens, and a token attends only to those of its own
    chunk, rather than to its last ``sliding_window`` tokens (Llama 4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentFacts:
    """Recurrent layers, which keep a state of fixed size instead of data for each token. ``tensors`` are the state of
    one layer. The computation itself is described by separate op sites."""

    site: str
    num_layers: int
    tensors: tuple[StateTensor, ...]
    units: int = 0
    """Number of head groups that tensor parallelism divides between ranks, each group whole; 0: it does not shard."""
    divided: tuple[int, ...] = ()
    """With ``units``: for each of ``tensors``, the dimension that is sharded."""
    inputs: tuple[StateTensor, ...] = ()
    """As :attr:`RecurrentCache.inputs <llmk.api.RecurrentCache.inputs>`. With ``units``, the first dimension is
    sharded. Empty: the model can't be used with drafts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsFacts:
    """Layers that keep rows of each token, which ops find by the block table themselves. ``tensors`` are the rows of
    one token in one layer; every tensor-parallel rank keeps them. The op site of the same name gets the block size as
    the fact ``block_size``."""

    site: str
    num_layers: int
    tensors: tuple[StateTensor, ...]


def in_state_dtype(site: RecurrentFacts, dtype: str) -> RecurrentFacts:
    """A recurrent site whose states that accumulate small changes are kept in ``dtype``."""
    tensors = (replace(each, dtype=dtype) if each.accumulates else each for each in site.tensors)
    return replace(site, tensors=tuple(tensors))


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearFacts:
    """A linear site: ``count`` layers that multiply ``[tokens, in_features]`` by a weight
    ``[out_features, in_features]``."""

    site: str
    in_features: int
    out_features: int
    bias: bool = False
    count: int = 1
    quantizable: bool = True
    tied: bool = False
    """Whether the weight is also the embedding table, in which rows are looked up."""
    parallel: Cut = ""
    units: tuple[tuple[int, int], ...] = ()
    """For ``parallel="column"``: for each packed part of the weight, the number of units (heads) and the output
    features per unit. Units are not split; a part with fewer units than ranks is replicated. Empty: one part, whose
    units have one feature."""
    modules: tuple[tuple[str, ...], ...] = ()
    """For each of the ``count`` layers, the checkpoint's names of the modules that are packed in it
    (``"model.layers.0.self_attn.q_proj"``). Empty: unknown; all layers must then have the same weight format."""
    weight_format: str = "plain"
    """Set by planning: the format in which the checkpoint stores the site's weights."""
    variant_of: str = ""
    """Set by planning: the site's name in the model, if its layers have several weight formats, so that each format is
    planned as a site of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoEFacts:
    """A mixture-of-experts site: ``count`` blocks with routers and experts of the same shapes."""

    site: str
    num_experts: int
    top_k: int
    hidden_size: int
    intermediate_size: int
    """Intermediate size of one expert."""
    activation: str = "silu"
    count: int = 1
    renormalize: bool = True
    """Whether the weights of the chosen experts are divided by their sum. Where that is 0, as all scores are too small
    for float32, the token's result is undefined."""
    scoring: str = "softmax"
    """How scores are computed from router logits: ``"softmax"`` over all experts, or ``"sigmoid"`` of each."""
    scaling: float = 1.0
    """The factor of the final weights."""
    bias: bool = False
    """Whether the experts' linear layers have biases."""
    num_groups: int = 1
    """Number of groups of consecutive experts; each token uses only experts of its best ``top_groups`` groups."""
    top_groups: int = 1
    group_scoring: str = "max"
    """How a group is scored: by its best expert (``"max"``), or by the sum of its two best (``"top2_sum"``)."""
    modules: tuple[tuple[str, ...], ...] = ()
    """As ``LinearFacts.modules``, for the first expert of each block; all experts of a block must have the same
    weight format."""
    weight_format: str = "plain"
    """Set by planning: the format in which the checkpoint stores the site's weights."""
    variant_of: str = ""
    """Set by planning: the site's name in the model, if its layers have several weight formats, so that each format is
    planned as a site of its own."""
    activation_alpha: float = 1.0
    """The gated activation is ``activation(alpha * gate) / alpha * (up + up_offset)``; with ``"silu"``, this is
    ``gate * sigmoid(alpha * gate) * (up + up_offset)``."""
    activation_limit: float | None = None
    """Before it, gate features are clamped to at most this limit, and up features to the range between minus and plus
    the limit; ``None``: not clamped."""
    up_offset: float = 0.0
    selection_bias: bool = False
    """Whether the checkpoint has a bias per expert that is added to the scores to choose experts, but not to the
    weights. Every MoE kernel takes one."""
    router_bias: bool = False
    """Whether the router's linear layer has a bias."""
    gated: bool = True
    """Whether experts have a gate projection. Without, an expert is ``down(activation(up(x)))``: ``gate_up`` is the
    up projection alone, ``[E, I, H]``, and ``activation`` is a name in
    ``llmk.reference.activations.PLAIN_ACTIVATIONS``."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Further facts that change the experts' results, by name, such as ``{"router_softcap": 30.0}``. A kernel gets each
    as a keyword argument, and is refused if it does not know all of them (``KernelSpec.knows``).
    ``llmk.reference.moe.fused_moe`` documents those that the reference knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpFacts:
    """An op site. ``op`` is the op's name; ``facts`` are the values that its kernels check in queries (sizes,
    activation names, …)."""

    site: str
    op: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    attention: str | None = None
    """The attention site whose backend and cache the op uses, if any."""
    linear: str | None = None
    """The linear site whose GEMM is part of the op, if any."""
    divided: tuple[str, ...] = ()
    """Keys of those ``facts`` that are sizes which tensor parallelism divides between ranks."""
    variant_of: str = ""
    """As ``LinearFacts.variant_of``, if planning splits the op's linear site."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Everything that planning needs to know about a model. Sizes are in elements, ``max_model_len`` in tokens."""

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
    rows: tuple[RowsFacts, ...] = ()
    linear: tuple[LinearFacts, ...] = ()
    moe: tuple[MoEFacts, ...] = ()
    ops: tuple[OpFacts, ...] = ()
    chains: tuple[tuple[str, str], ...] = ()
    """Op sites and the linear sites that alone read their results, for ops that span both (``OpContract.pattern``). The
    layers look for such an op at the site ``"op+linear"``."""
    parallel: tuple[Way, ...] = ()
    """The kinds of parallelism that the model's implementation supports."""
    default_model_len: int = 0
    """The served context length unless the configuration sets one, if it should be shorter than ``max_model_len``,
    because the served length changes results of short texts too. 0: ``max_model_len``."""
    default_why: str = ""
    """The reason for ``default_model_len``, in a sentence for the log."""
    takes_embeddings: bool = False
    """Whether prompts may have embeddings (``[hidden_size]``) in place of tokens: its ``forward`` reads
    ``StepContext.given``, and nothing else reads token ids."""
    state_dtype: str = ""
    """The dtype that the checkpoint states for recurrent states that accumulate small changes; empty: none."""


class DescribeModel(Protocol):
    """The function that ``ModelSpec.describe`` names."""

    @abstractmethod
    def __call__(self, checkpoint: Checkpoint) -> ModelFacts:
        """The facts of a checkpoint's model. Imports no torch. Raises :class:`~llmk.api.LlmkError` for a checkpoint
        that can't be served."""
        ...

"""A whole language model."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from llmk.tree.block import Residual
from llmk.tree.config import Config
from llmk.tree.embedding import Embedding, Head
from llmk.tree.linear import Linear
from llmk.tree.norm import Norm
from llmk.tree.spec import Spec


class Carried(NamedTuple):
    """A tensor ``[tokens, size]`` that passes from layer to layer. ``dtype`` is torch's name; empty: the engine's."""

    size: int
    dtype: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream(Spec):
    """What passes from layer to layer, if that is not a residual stream.

    Its ``implementation`` makes an object with two methods: ``start(x)`` returns the carried tensors of embeddings,
    ``end(*carried)`` the final hidden states. A layer's parts are then specs of the family's wheel; each maps the
    carried tensors and the step to the next ones.
    """

    carried: tuple[Carried, ...]
    reads_tokens: bool = False
    """Whether ``start`` gets the token ids, int64 ``[tokens]``, after the embeddings. Prompts can then have no
    embeddings in place of tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead(Spec):
    """A head that predicts the token after the next, by a layer of its own over what the model, or the head before,
    computed of a token, and the embedding of the next one (multi-token prediction: DeepSeek-V3, arXiv:2412.19437).
    Embeddings and the last projection are the model's."""

    embed_norm: Norm
    """Of the next token's embedding; like ``hidden_norm``, with a role."""
    hidden_norm: Norm
    """Of final hidden states."""
    project: Linear
    """From both side by side, the embedding first, to hidden states."""
    layer: tuple[Residual, ...]
    norm: Norm
    """Of the hidden states that tokens are predicted from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CausalLM(Spec):
    """Embedding, layers, final norm and head: what a family returns for a checkpoint."""

    embed: Embedding
    layers: tuple[tuple[Residual | Spec, ...], ...]
    """For each layer, what it adds to the residual stream, in order. Layers that are equal but for names run the same
    kernels."""
    norm: Norm
    head: Head
    max_model_len: int
    """Maximum number of positions."""
    default_model_len: int = 0
    """As :attr:`llmk.api.ModelFacts.default_model_len`; ``default_why`` likewise. Where it is 0, texts are as long as
    LongRoPE's short factors reach, if the config has them (:func:`llmk.tree.default_length`)."""
    default_why: str = ""
    embed_norm: Norm | None = None
    """Norm of the embeddings, with a role of its own; ``None``: they are not normed. Not with a stream."""
    residual_dtype: str = ""
    """The dtype of the residual stream from the second layer on; empty: the engine's."""
    ignored: tuple[str, ...] = ()
    """Regular expressions, matched in full, for checkpoint tensors that the model does not use."""
    stream: Stream | None = None
    ahead: tuple[Ahead, ...] = ()
    """Heads that predict further tokens, where they are wanted (``ModelSpec.ahead``); not with a stream."""


class MakeTree(Protocol):
    """What ``ModelSpec.tree`` names."""

    @abstractmethod
    def __call__(self, config: Config) -> CausalLM:
        """The tree of a checkpoint's model. Imports no torch. Raises :class:`~llmk.api.LlmkError` for a checkpoint that
        can't be served."""
        ...


class MakeAhead(Protocol):
    """What ``ModelSpec.ahead`` names."""

    @abstractmethod
    def __call__(self, config: Config) -> tuple[Ahead, ...]:
        """The heads that a checkpoint has, in the order in which they predict; empty: it has none. Imports no torch."""
        ...

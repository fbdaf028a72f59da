"""The parts of Llama-like decoders, with the sizes and options of a checkpoint's config. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from llmk.tree import (
    MLP,
    Ahead,
    Block,
    CausalLM,
    Config,
    Embedding,
    GatedMLP,
    Head,
    Heads,
    Linear,
    Norm,
    Parallel,
    Residual,
    Rope,
    SelfAttention,
)
from llmk.tree.config import MOST_LAYERS
from llmk.tree.spec import Spec
from llmk_models.windows import layer_windows


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The properties of an architecture that its config does not state.

    ``qkv_bias`` and ``qk_norm`` are properties of the architecture, ``bias_flags`` the config's options that it reads.
    ``windows``: which layers have a sliding window: ``"none"``, ``"all"``, those selected by ``use_sliding_window``
    (``"switched"``; or all if it is set, ``"all switched"``), those from ``max_window_layers`` on (``"late"``), those
    that ``layer_types`` says or all (``"stated"``), or every other layer from the first (``"alternating"``).
    ``activations`` are the values of the config's ``activation_key`` that the native implementation supports, the
    default first; ``eps_key`` is the config's key of the norms' epsilon. ``norm_offset``, ``centered`` and
    ``norm_bias`` are those of :class:`llmk.tree.Norm`, ``neighbours`` that of :class:`llmk.tree.Rope`. The other fields
    are defaults of the config's keys.
    """

    qkv_bias: bool = False
    bias_flags: tuple[str, ...] = ()
    qk_norm: bool = False
    windows: str = "none"
    window: int | None = 4096
    head_dim: int | None = None
    num_kv_heads: int | None = None
    norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    tied: bool = False
    activation_key: str = "hidden_act"
    activations: tuple[str, ...] = ("silu", "swish")
    norm_offset: float = 0.0
    eps_key: str = "rms_norm_eps"
    centered: bool = False
    norm_bias: bool = False
    neighbours: bool = False


class Names(NamedTuple):
    """What the checkpoint calls the parts of a decoder."""

    model: str = "model"
    embed: str = "embed_tokens"
    layers: str = "layers"
    norm: str = "norm"
    head: str = "lm_head"
    before: tuple[str, str] = ("input_layernorm", "post_attention_layernorm")
    """The norms before the two blocks of a layer."""


def with_values(config: Config, **values: Any) -> Config:
    """The config with other values, for keys that have names of their own in a family."""
    return Config(replace(config.checkpoint, config={**config.values, **values}))


MakeLayer = Callable[[int, str], tuple[Residual, ...]]
"""A layer's parts by its index and its name in the checkpoint."""


class Parts:
    """Makes the parts of a decoder. Raises :class:`~llmk.api.CheckpointError` for options that it does not support.

    A family changes attributes where it differs from Llama.
    """

    def __init__(self, config: Config, family: Family, **rope: Any) -> None:
        config.choice(family.activation_key, *family.activations)
        self.config = config
        self.hidden_size = config.size("hidden_size")
        self.inner_size = config.size("intermediate_size")
        self.num_layers = config.num_layers("num_hidden_layers")
        self.vocab_size = config.size("vocab_size")
        self.heads = Heads.of(config, kv=family.num_kv_heads, dim=family.head_dim)
        rope_spec = Rope.of(config, self.heads.dim, theta=family.rope_theta, **rope)
        self.rope = replace(rope_spec, neighbours=family.neighbours)
        self.eps = config.number(family.eps_key, family.norm_eps)
        self.norm_offset = family.norm_offset
        self.norm_options = {"centered": family.centered, "bias": family.norm_bias}
        self.qk_norm = self.eps if family.qk_norm else None
        biases = {key: config.flag(key, False) for key in family.bias_flags}
        self.out_bias = biases.get("attention_bias", False)
        self.qkv_bias = family.qkv_bias or self.out_bias
        self.mlp_bias = biases.get("mlp_bias", False)
        self.tied = config.flag("tie_word_embeddings", family.tied)
        self.windows = _windows(config, family, self.num_layers)
        self.root = ""
        """What the names of all tensors start with."""
        self.names = Names()

    def norm(self, at: str, role: str = "") -> Norm:
        """A norm of hidden states; ``role`` as in :class:`llmk.tree.Norm`."""
        own: dict[str, Any] = {"offset": self.norm_offset, **self.norm_options}
        return Norm(at=at, size=self.hidden_size, eps=self.eps, role=role, **own)

    def attention(
        self, at: str, window: int | None = None, rope: Rope | None = None, *, rotated: bool = True, **more: Any
    ) -> SelfAttention:
        """Attention; ``more`` are arguments of :meth:`llmk.tree.SelfAttention.of`. Unless ``rotated``, queries and keys
        are not rotated (NoPE)."""
        own: dict[str, Any] = {"bias": self.qkv_bias, "out_bias": self.out_bias, "qk_norm": self.qk_norm}
        own |= {"norm_offset": self.norm_offset, "window": window, **more}
        return SelfAttention.of(at, self.hidden_size, self.heads, (rope or self.rope) if rotated else None, **own)

    def mlp(self, at: str, inner_size: int = 0, **more: Any) -> GatedMLP:
        """The MLP; ``more`` are arguments of :meth:`llmk.tree.GatedMLP.of`."""
        return GatedMLP.of(at, self.hidden_size, inner_size or self.inner_size, bias=self.mlp_bias, **more)

    def packed_mlp(self, at: str) -> GatedMLP:
        """The MLP of checkpoints that store gate and up projections packed alone."""
        hidden, inner = self.hidden_size, self.inner_size
        gate_up = Linear.packed(f"{at}.gate_up_proj", "gate_up", hidden, ("", ""), (inner, inner))
        return GatedMLP(at=at, gate_up=gate_up, down=Linear.row(f"{at}.down_proj", "down", inner, hidden))

    def plain_mlp(self, at: str, activation: str, names: tuple[str, str] = ("up_proj", "down_proj")) -> MLP:
        """An MLP without a gate, with the checkpoint's ``names``."""
        return MLP.of(at, self.hidden_size, self.inner_size, activation, bias=self.mlp_bias, names=names)

    def parallel(self, at: str, norm: str, *blocks: Block) -> tuple[Residual, ...]:
        """Command R's layer: one norm, and blocks side by side."""
        return (Residual(norm=self.norm(f"{at}.{norm}"), block=Parallel.of(at, *blocks)),)

    def pre_normed(self, at: str, mixer: Any, feed_forward: Any, *, scale: float = 1.0) -> tuple[Residual, ...]:
        """Llama's layer: a norm before each of two blocks, whose output is multiplied by ``scale``."""
        norms, blocks = (self.norm(f"{at}.{name}") for name in self.names.before), (mixer, feed_forward)
        return tuple(Residual(norm=norm, block=own, scale=scale) for norm, own in zip(norms, blocks, strict=True))

    def post_normed(self, at: str, mixer: Any, feed_forward: Any) -> tuple[Residual, ...]:
        """OLMo 2's layer: a norm after each of two blocks."""
        norms = self.norm(f"{at}.post_attention_layernorm"), self.norm(f"{at}.post_feedforward_layernorm")
        blocks = mixer, feed_forward
        return tuple(Residual(norm=None, block=own, post=norm) for norm, own in zip(norms, blocks, strict=True))

    def sandwich(
        self,
        at: str,
        mixer: Any,
        feed_forward: Any,
        names: tuple[str, ...] = ("input", "post_attention", "pre_feedforward", "post_feedforward"),
    ) -> tuple[Residual, ...]:
        """Gemma 2's layer: norms before and after each of two blocks, with ``names`` in this order."""
        before, after, then, last = (self.norm(f"{at}.{name}_layernorm") for name in names)
        return Residual(norm=before, block=mixer, post=after), Residual(norm=then, block=feed_forward, post=last)

    def ahead(self, layer: MakeLayer) -> tuple[Ahead, ...]:
        """The heads that predict further tokens, as many as the config says, with the names of DeepSeek-V3: their
        layers come after the others."""
        hidden, first = self.hidden_size, self.num_layers

        def head(index: int) -> Ahead:
            at = f"{self.root}{self.names.model}.{self.names.layers}.{index}"
            return Ahead(
                at=at,
                embed_norm=self.norm(f"{at}.enorm", "ahead_norm"),
                hidden_norm=self.norm(f"{at}.hnorm", "ahead_norm"),
                project=Linear.whole(f"{at}.eh_proj", "ahead_project", 2 * hidden, hidden),
                layer=layer(index, at),
                norm=self.norm(f"{at}.shared_head.norm"),
            )

        return tuple(head(first + number) for number in range(self._num_ahead))

    @property
    def names_ahead(self) -> tuple[str, ...]:
        """What the names of such heads' tensors match. Some configs don't name the one that the files have."""
        first = self.num_layers
        each = "|".join(str(first + number) for number in range(max(1, self._num_ahead)))
        return (rf"model\.layers\.({each})\..*",)

    @property
    def _num_ahead(self) -> int:
        count = partial(self.config.count, most=MOST_LAYERS)
        return self.config.nullable(count, "num_nextn_predict_layers", 0) or 0

    def decoder(
        self,
        layer: Callable[[int, str], tuple[Spec, ...]],
        *,
        scale: float | None = None,
        scale_given: bool = False,
        softcap: float | None = None,
        logits_scale: float = 1.0,
        head_bias: bool = False,
        ignored: tuple[str, ...] = (),
        **more: Any,
    ) -> CausalLM:
        """The whole model. ``layer`` returns a layer's parts by its index and its name in the checkpoint; ``scale`` is
        that of the embeddings, with ``scale_given`` of those too that prompts have in place of tokens; ``softcap`` and
        ``logits_scale`` are those of the logits, ``head_bias`` is whether they have a bias; ``more`` are further fields
        of the tree."""
        vocab, hidden, longest = self.vocab_size, self.hidden_size, self.rope.max_model_len
        names = self.names
        aliases = (f"{self.root}{names.head}.weight",) if self.tied else ()
        model = f"{self.root}{names.model}." if self.root or names.model else ""
        head: dict[str, Any] = {"scale": logits_scale, "softcap": softcap, "bias": head_bias}
        return CausalLM(
            embed=Embedding(
                at=f"{model}{names.embed}",
                vocab_size=vocab,
                size=hidden,
                scale=scale,
                scale_given=scale_given,
                aliases=aliases,
            ),
            layers=tuple(layer(index, f"{model}{names.layers}.{index}") for index in range(self.num_layers)),
            norm=self.norm(f"{model}{names.norm}"),
            head=Head(at=names.head, vocab_size=vocab, size=hidden, tied=self.tied, **head),
            max_model_len=longest,
            ignored=(r".*\.rotary_emb\.inv_freq", *ignored),
            **more,
        )


def ahead_of(decoder: Callable[[Config], tuple[Parts, MakeLayer]]) -> Callable[[Config], tuple[Ahead, ...]]:
    """What ``ModelSpec.ahead`` names, of a family whose parts and layers ``decoder`` makes."""

    def ahead(config: Config) -> tuple[Ahead, ...]:
        parts, layer = decoder(config)
        return parts.ahead(layer)

    return ahead


def _windows(config: Config, family: Family, num_layers: int) -> tuple[int | None, ...]:
    """Each layer's sliding window, ``None`` for full attention."""
    window = config.nullable(config.count, "sliding_window", family.window) or None
    switched = "switched" in family.windows
    if family.windows == "none" or (switched and not config.flag("use_sliding_window", False)):
        return (None,) * num_layers
    if family.windows.startswith("all"):
        return (window,) * num_layers
    if family.windows == "alternating" and not config.texts("layer_types"):
        return tuple(None if layer % 2 else window for layer in range(num_layers))
    first = 0 if family.windows == "stated" else config.count("max_window_layers", 28)
    return layer_windows(config, num_layers, window, first=first)

"""Recurrent layers, which keep a state of fixed size instead of an entry per token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from math import prod
from typing import Any, ClassVar, Protocol, Self

from llmk.api import OpFacts, RecurrentFacts, StateTensor
from llmk.tree.block import Block
from llmk.tree.linear import Linear, Part
from llmk.tree.spec import Leaf, Spec, Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpaceSizes:
    """Sizes and options of a selective scan (Mamba-2, arXiv:2405.21060). ``site`` is the site of its state and of its
    op; ``divided`` names the sizes that tensor-parallel ranks shard, ``state_divided`` the dimension
    of each state tensor."""

    site: ClassVar[str] = "state_space_mixer"
    divided: ClassVar[tuple[str, ...]] = ("num_heads", "num_groups")
    state_divided: ClassVar[tuple[int, ...]] = (1, 0)

    num_heads: int
    head_dim: int
    num_groups: int
    """Groups of heads. The heads of a group share the vectors B and C, which write to and read from the state."""
    state_size: int
    conv_kernel: int
    conv_bias: bool = True
    dt_limits: tuple[float, float | None] = (0.0, None)
    """Least and greatest step size (``dt``); ``None``: unbounded."""
    gating: str = "gate_first"
    """How the result is gated: before its norm (``"gate_first"``), after it (``"norm_first"``), or without a norm
    (``"gate_only"``)."""

    @property
    def facts(self) -> dict[str, Any]:
        """The facts of its op."""
        return _without(asdict(self), gating="gate_first")

    @property
    def options(self) -> dict[str, Any]:
        """Those facts that its kernel gets by name."""
        return _without({"gating": self.gating}, gating="gate_first")

    @property
    def inner_size(self) -> int:
        """Channels of all heads together."""
        return self.num_heads * self.head_dim

    @property
    def units(self) -> int:
        """How many units tensor-parallel ranks shard; a unit is never split. One unit is a group, because its heads are
        normed together."""
        return self.num_groups

    @property
    def conv_parts(self) -> tuple[int, int, int]:
        """Channels of the convolution: the heads' inputs (x), and two vectors of ``state_size`` per group (B and C)."""
        vectors = self.num_groups * self.state_size
        return self.inner_size, vectors, vectors

    @property
    def projected_parts(self) -> tuple[int, ...]:
        """Widths of the layer's input: the gate, the channels of the convolution, and a step size per head."""
        return self.inner_size, *self.conv_parts, self.num_heads

    def state(self, dtype: str) -> tuple[StateTensor, StateTensor]:
        """The state tensors of one layer; ``dtype`` is the engine's."""
        return _conv_and_heads(
            self.conv_kernel, sum(self.conv_parts), dtype, (self.num_heads, self.head_dim, self.state_size)
        )

    def inputs(self, dtype: str) -> tuple[StateTensor, ...]:
        """What a token adds to the state is computed from: the channels of the convolution, and the step sizes."""
        return StateTensor("conv", (sum(self.conv_parts),), dtype), StateTensor("dt", (self.num_heads,), dtype)

    def tensors(self, at: str) -> tuple[Tensor, ...]:
        """The tensors of the mixer ``at``, apart from its projections."""
        channels, heads = sum(self.conv_parts), self.num_heads
        bias = (Tensor(f"{at}.conv1d.bias", (channels,)),) if self.conv_bias else ()
        norm = () if self.gating == "gate_only" else (Tensor(f"{at}.norm.weight", (self.inner_size,)),)
        return (
            Tensor(f"{at}.conv1d.weight", (channels, 1, self.conv_kernel)),
            *bias,
            *(Tensor(f"{at}.{name}", (heads,)) for name in ("A_log", "D", "dt_bias")),
            *norm,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNetSizes:
    """Sizes of the gated delta rule (arXiv:2412.06464); ``site`` and ``divided`` as in :class:`StateSpaceSizes`."""

    site: ClassVar[str] = "gated_delta_net"
    divided: ClassVar[tuple[str, ...]] = ("num_heads", "num_key_heads")
    state_divided: ClassVar[tuple[int, ...]] = (1, 0)
    conv_names: ClassVar[tuple[str, ...]] = ("conv1d",)
    """The checkpoint's names of the convolution, or of its parts."""
    norm_name: ClassVar[str] = "norm"

    num_heads: int
    num_key_heads: int
    """Each is shared by ``num_heads / num_key_heads`` consecutive heads."""
    key_dim: int
    value_dim: int
    conv_kernel: int

    @property
    def units(self) -> int:
        """How many units tensor-parallel ranks shard; a unit is never split. One unit is a key head with the heads that
        share it."""
        return self.num_key_heads

    @property
    def conv_parts(self) -> tuple[int, int, int]:
        """Channels of the convolution: queries, keys and values."""
        keys = self.num_key_heads * self.key_dim
        return keys, keys, self.num_heads * self.value_dim

    def state(self, dtype: str) -> tuple[StateTensor, StateTensor]:
        """The state tensors of one layer; ``dtype`` is the engine's."""
        return _conv_and_heads(
            self.conv_kernel, sum(self.conv_parts), dtype, (self.num_heads, self.value_dim, self.key_dim)
        )

    @property
    def facts(self) -> dict[str, Any]:
        """The facts of its op."""
        return asdict(self)

    @property
    def options(self) -> dict[str, Any]:
        """Those facts that its kernel gets by name."""
        return {}

    @property
    def decays(self) -> tuple[int, ...]:
        """The shape of the decays of a token: one for each head."""
        return (self.num_heads,)

    def conv_weights(self, at: str) -> dict[str, int]:
        """The names of the convolution's tensors, and the channels of each."""
        parts = self.conv_parts if len(self.conv_names) > 1 else (sum(self.conv_parts),)
        return {f"{at}.{name}.weight": rows for name, rows in zip(self.conv_names, parts, strict=True)}

    def inputs(self, dtype: str) -> tuple[StateTensor, ...]:
        """What a token adds to the state is computed from: the channels of the convolution, and each head's decays and
        ``beta``."""
        scalars = StateTensor("a", (prod(self.decays),), dtype), StateTensor("b", (self.num_heads,), dtype)
        return StateTensor("conv", (sum(self.conv_parts),), dtype), *scalars

    def tensors(self, at: str) -> tuple[Tensor, ...]:
        """The tensors of the mixer ``at``, apart from its projections."""
        return (
            *(Tensor(name, (rows, 1, self.conv_kernel)) for name, rows in self.conv_weights(at).items()),
            Tensor(f"{at}.A_log", (self.num_heads,)),
            Tensor(f"{at}.dt_bias", (prod(self.decays),)),
            Tensor(f"{at}.{self.norm_name}.weight", (self.value_dim,)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KimiDeltaSizes(DeltaNetSizes):
    """Sizes of Kimi delta attention (KDA, arXiv:2510.26692): a gated delta rule in which each element of a key decays
    by itself, and whose gate is a sigmoid."""

    conv_names: ClassVar[tuple[str, ...]] = ("q_conv1d", "k_conv1d", "v_conv1d")
    norm_name: ClassVar[str] = "o_norm"

    decay_bound: float | None = None
    """Least log decay, which all approach as their inputs grow; ``None``: unbounded."""

    @property
    def facts(self) -> dict[str, Any]:
        """The facts of its op."""
        kept = _without(asdict(self), decay_bound=None)
        return {**kept, "channel_decays": True, "gate_activation": "sigmoid"}

    @property
    def options(self) -> dict[str, Any]:
        """Those facts that its kernel gets by name."""
        return _without({"gate_activation": "sigmoid", "decay_bound": self.decay_bound}, decay_bound=None)

    @property
    def decays(self) -> tuple[int, ...]:
        """The shape of the decays of a token: one for each element of a head's key."""
        return self.num_heads, self.key_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class LightningSizes:
    """Sizes of lightning attention (arXiv:2405.17381): linear attention whose states decay at a constant rate.
    ``site``, ``divided`` and ``state_divided`` as in :class:`~llmk.tree.StateSpaceSizes`."""

    site: ClassVar[str] = "lightning_attention"
    divided: ClassVar[tuple[str, ...]] = ("num_heads", "num_groups")
    state_divided: ClassVar[tuple[int, ...]] = (0,)

    num_heads: int
    head_dim: int

    @property
    def units(self) -> int:
        """How many units tensor-parallel ranks shard: each head is one."""
        return self.num_heads

    @property
    def facts(self) -> dict[str, Any]:
        """The facts of its op, which are those of the selective scan that it equals: one of step size 1, in which each
        head has keys and queries of its own."""
        heads, size = self.num_heads, self.head_dim
        return {
            "num_heads": heads,
            "head_dim": size,
            "num_groups": heads,
            "state_size": size,
            "dt_limits": (1.0, 1.0),
        }

    def state(self, dtype: str) -> tuple[StateTensor, ...]:
        """The state tensor of one layer; ``dtype`` is the engine's."""
        return (StateTensor("heads", (self.num_heads, self.head_dim, self.head_dim), "float32", accumulates=True),)

    def inputs(self, dtype: str) -> tuple[StateTensor, ...]:
        """What a token adds to the state: queries, keys and values."""
        return tuple(StateTensor(name, (self.num_heads * self.head_dim,), dtype) for name in ("q", "k", "v"))

    def tensors(self, at: str) -> tuple[Tensor, ...]:
        """None: decays follow from the number of heads and of layers."""
        return ()


class RecurrentSizes(Protocol):
    """Sizes of a recurrent layer, as :class:`StateSpaceSizes` has them. Where its convolution is an op by itself, they
    have the facts of that op too."""

    site: ClassVar[str]
    divided: ClassVar[tuple[str, ...]]
    state_divided: ClassVar[tuple[int, ...]]

    @property
    def units(self) -> int: ...
    @property
    def facts(self) -> dict[str, Any]: ...
    def state(self, dtype: str) -> tuple[StateTensor, ...]: ...
    def inputs(self, dtype: str) -> tuple[StateTensor, ...]: ...
    def tensors(self, at: str) -> tuple[Tensor, ...]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelSizes:
    """What recurrent layers have in common whose channels don't mix: tensor-parallel ranks share
    them one by one."""

    divided: ClassVar[tuple[str, ...]] = ("channels",)

    channels: int
    conv_kernel: int

    @property
    def units(self) -> int:
        """How many units tensor-parallel ranks shard: each channel is one."""
        return self.channels

    @property
    def conv_parts(self) -> tuple[int, ...]:
        """Channels of the convolution."""
        return (self.channels,)


def _without(facts: dict[str, Any], **neutral: Any) -> dict[str, Any]:
    """``facts`` without those that were added after the first release, where they are neutral."""
    return {name: value for name, value in facts.items() if name not in neutral or value != neutral[name]}


def _conv_and_heads(kernel: int, channels: int, dtype: str, heads: tuple[int, ...]) -> tuple[StateTensor, StateTensor]:
    """The convolution's last inputs, and one state per head, in which small changes accumulate over many tokens."""
    return StateTensor("conv", (kernel - 1, channels), dtype), StateTensor("heads", heads, "float32", accumulates=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrent(Leaf):
    """The convolution and the recurrence between a layer's projections, in one op or two, depending on ``sizes``.
    ``at`` is the mixer's name in the checkpoint."""

    sizes: RecurrentSizes
    eps: float
    """Epsilon of its norm."""

    def tensors(self) -> tuple[Tensor, ...]:
        return self.sizes.tensors(self.at)

    def site(self, dtype: str) -> RecurrentFacts:
        sizes = self.sizes
        return RecurrentFacts(
            site=sizes.site,
            num_layers=1,
            tensors=sizes.state(dtype),
            units=sizes.units,
            divided=sizes.state_divided,
            inputs=sizes.inputs(dtype),
        )

    def ops(self, name: Callable[[Spec], str]) -> tuple[OpFacts, ...]:
        sizes = self.sizes
        own = OpFacts(site=sizes.site, op=sizes.site, facts=sizes.facts, divided=sizes.divided)
        conv: OpFacts | None = getattr(sizes, "conv_op", None)
        return (own,) if conv is None else (own, conv)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanMixer(Block):
    """Mamba-2's mixer: projection, selective scan, projection."""

    into: Linear
    scan: Recurrent
    out: Linear
    factors: tuple[float, ...] = ()
    """Those of each part of what the first projection returns (:attr:`StateSpaceSizes.projected_parts`); empty: 1."""

    @classmethod
    def of(
        cls, at: str, hidden_size: int, sizes: StateSpaceSizes, eps: float, *, bias: bool, out_bias: bool, **more: Any
    ) -> Self:
        """With the usual names; ``bias`` and ``out_bias`` are those of the two projections, ``more`` further fields."""
        outputs = tuple(Part(rows, sizes.units) for rows in sizes.projected_parts)
        into: dict[str, Any] = {"size": hidden_size, "outputs": outputs, "bias": bias, "cut": "column"}
        return cls(
            at=at,
            into=Linear(at=f"{at}.in_proj", role="scan_in", **into),
            scan=Recurrent(at=at, sizes=sizes, eps=eps),
            out=Linear.row(f"{at}.out_proj", "scan_out", sizes.inner_size, hidden_size, bias=out_bias),
            **more,
        )

    def addend(self, partial: Callable[[Linear], Linear]) -> Self:
        return replace(self, out=partial(self.out))

"""MiniMax-Text-01 and M1: lightning attention in most layers, experts in all; what a layer adds to is its normed input
(arXiv:2501.08313, arXiv:2506.13585)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from llmk.api import MoEFacts
from llmk.tree import Block, Carried, CausalLM, Config, Gate, LightningSizes, Linear, MoE, Norm, Recurrent, Spec, Stream
from llmk.tree.config import MOST_EXPERTS
from llmk_models.parts import Family, Parts
from llmk_models.state_space import attending_layers

FAMILY = Family(windows="all", window=None, num_kv_heads=8, norm_eps=1e-5, rope_theta=1e6)
"""These and the following numbers are the defaults of transformers' config class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LightningMixer(Block):
    """Lightning attention, normed over all heads together, with a gate for each element."""

    implementation: ClassVar[str] = "llmk_models.lightning_mixer:LightningMixer"

    into: Linear
    """To queries, keys and values."""
    scan: Recurrent
    factor: float
    """Of the decays: later layers keep more."""
    norm: Norm
    gate_proj: Linear
    gate: Gate
    out: Linear

    @property
    def decays(self) -> tuple[float, ...]:
        """The log decay of each head."""
        sizes = self.scan.sizes
        assert isinstance(sizes, LightningSizes)
        heads = sizes.num_heads
        return tuple(-(2 ** (-8 / heads * (head + 1))) * self.factor for head in range(heads))

    @classmethod
    def of(cls, at: str, hidden_size: int, sizes: LightningSizes, factor: float) -> Self:
        """With the names of MiniMax. Its norms have an epsilon of their own."""
        heads, inner = sizes.num_heads, sizes.num_heads * sizes.head_dim
        qkv = f"{at}.qkv_proj", "lightning_in", hidden_size, ("",) * 3, (inner,) * 3, (heads,) * 3
        return cls(
            at=at,
            into=Linear.packed(*qkv, groups=heads),
            scan=Recurrent(at=at, sizes=sizes, eps=0.0),
            factor=factor,
            norm=Norm(at=f"{at}.norm", size=inner, eps=1e-6, role="lightning_norm"),
            gate_proj=Linear.column(f"{at}.output_gate", "output_gate", hidden_size, inner, heads),
            gate=Gate(role="lightning_gate", size=inner, gate_size=inner, by_heads=True),
            out=Linear.row(f"{at}.out_proj", "out", inner, hidden_size),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NormedResidual(Spec):
    """``keep * norm(x) + add * block(norm(x))``."""

    implementation: ClassVar[str] = "llmk_models.lightning_mixer:NormedResidual"

    norm: Norm
    block: Block
    keep: float
    add: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OneStream(Stream):
    """Hidden states, as they are."""

    implementation: ClassVar[str] = "llmk_models.lightning_mixer:OneStream"


def tree(config: Config) -> CausalLM:
    """The tree of a MiniMax checkpoint."""
    parts = Parts(config, FAMILY)
    sizes, count = LightningSizes(num_heads=parts.heads.count, head_dim=parts.heads.dim), parts.num_layers
    attends = attending_layers(config, count, tuple(index % 2 == 0 for index in range(count)))
    experts = MoEFacts(
        site="moe",
        num_experts=config.size("num_local_experts", 8, most=MOST_EXPERTS),
        top_k=config.size("num_experts_per_tok", 2),
        hidden_size=parts.hidden_size,
        intermediate_size=parts.inner_size,
    )

    def residual(at: str, block: Block, kind: str) -> NormedResidual:
        factors: dict[str, Any] = {"keep": config.number(f"{kind}_alpha_factor", 1.0)}
        factors["add"] = config.number(f"{kind}_beta_factor", 1.0)
        return NormedResidual(norm=parts.norm(at, role="layer_norm"), block=block, **factors)

    def layer(index: int, at: str) -> tuple[Spec, ...]:
        if attends[index]:
            mixer: Block = parts.attention(f"{at}.self_attn", parts.windows[index])
        else:
            mixer = LightningMixer.of(f"{at}.self_attn", parts.hidden_size, sizes, _factor(index, count))
        aliases = (f"{at}.mlp",)
        moe = MoE.of(f"{at}.block_sparse_moe", experts, names=("w1", "w3", "w2"), aliases=aliases)
        kind, (before, after) = "full_attn" if attends[index] else "linear_attn", parts.names.before
        return residual(f"{at}.{before}", mixer, kind), residual(f"{at}.{after}", moe, "mlp")

    derived = (r"model\.layers\.\d+\.self_attn\.(slope_rate|(query|key|diagonal)_decay)",)
    model = parts.decoder(layer, ignored=derived)
    return replace(model, stream=OneStream(carried=(Carried(parts.hidden_size),)))


def _factor(layer: int, num_layers: int) -> float:
    """Of a layer's decays: later layers keep more."""
    return 1 - layer / (num_layers - 1 + 1e-5) + 1e-5

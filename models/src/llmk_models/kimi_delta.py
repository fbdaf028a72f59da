"""Kimi delta attention (KDA, arXiv:2510.26692) with its projections. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from llmk.tree import Block, Config, KimiDeltaSizes, Linear, Recurrent
from llmk_models.parts import with_values

_KEYS = {
    "max_position_embeddings": "model_max_length",
    "norm_topk_prob": "moe_renormalize",
    "n_group": "num_expert_group",
    "n_routed_experts": "num_experts",
    "num_experts_per_tok": "num_experts_per_token",
    "n_shared_experts": "num_shared_experts",
}
"""What configs of models with this attention call keys of others."""


def renamed(config: Config, **defaults: Any) -> Config:
    """A config with the usual names of keys; ``defaults`` are values of keys that it does not set. Raises
    CheckpointError, by the name that the config has, for odd values."""
    reads: dict[str, Callable[[str], Any]] = {"norm_topk_prob": config.flag, "n_shared_experts": config.count}
    own: dict[str, Any] = {
        key: reads.get(key, config.size)(name) for key, name in _KEYS.items() if config.values.get(name) is not None
    }
    return with_values(config, **{**defaults, **config.values, **own})


@dataclass(frozen=True, slots=True, kw_only=True)
class KimiDeltaMixer(Block):
    """The delta rule in which each element of a key decays by itself."""

    implementation: ClassVar[str] = "llmk_models.kimi_delta_mixer:KimiDeltaMixer"

    into: Linear
    """To queries, keys and values."""
    beta: Linear
    """To a value per head."""
    decays: tuple[Linear, ...]
    """From hidden states to a value per element of each head's key; two go through a narrow space."""
    gates: tuple[Linear, ...]
    """The same to the gates of the result."""
    net: Recurrent
    out: Linear

    @classmethod
    def of(
        cls,
        at: str,
        hidden_size: int,
        sizes: KimiDeltaSizes,
        eps: float,
        *,
        decays: tuple[str, ...],
        gates: tuple[str, ...],
        rank: int = 0,
        out_aliases: tuple[str, ...] = (),
    ) -> Self:
        """With the names of Kimi-Linear. ``decays`` and ``gates`` are the checkpoint's names of one projection each, or
        of two, to ``rank`` features and from them; ``out_aliases`` are other names of the last one."""
        heads, values = sizes.num_heads, sizes.num_heads * sizes.value_dim

        def projections(names: tuple[str, ...], role: str) -> tuple[Linear, ...]:
            narrow = (Linear.whole(f"{at}.{names[0]}", f"{role}_rank", hidden_size, rank),) if len(names) > 1 else ()
            wide = Linear.column(f"{at}.{names[-1]}", role, rank if narrow else hidden_size, values, heads)
            return (*narrow, wide)

        qkv = f"{at}.qkv_proj", "delta_in", hidden_size, ("q_proj", "k_proj", "v_proj"), sizes.conv_parts
        return cls(
            at=at,
            into=Linear.packed(*qkv, (heads,) * 3),
            beta=Linear.column(f"{at}.b_proj", "delta_beta", hidden_size, heads, quantizable=False),
            decays=projections(decays, "delta_decay"),
            gates=projections(gates, "delta_gate"),
            net=Recurrent(at=at, sizes=sizes, eps=eps),
            out=Linear.row(
                *(f"{at}.o_proj", "delta_out", values, hidden_size),
                aliases=tuple(f"{at}.{alias}" for alias in out_aliases),
            ),
        )

    def addend(self, partial: Callable[[Linear], Linear]) -> Self:
        return replace(self, out=partial(self.out))

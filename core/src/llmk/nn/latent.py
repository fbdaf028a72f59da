"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): the cache stores one compressed vector per token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from llmk.nn.build import Switch
from llmk.nn.context import StepContext
from llmk.nn.layer import Layer, Parameter
from llmk.nn.linear import Linear
from llmk.nn.norm import RMSNorm
from llmk.nn.shadow import Shadowed

if TYPE_CHECKING:
    from llmk.nn.build import Build
    from llmk.nn.facts import LatentShape


class LatentUp(Linear):
    """The up-projection of latent vectors to every head's key and value. It is never run as a linear layer: its weight
    is split into ``key`` and ``value``, which attention absorbs.

    Attributes:
        key: ``[heads, qk_nope_head_dim, kv_lora_rank]``.
        value: ``[heads, kv_lora_rank, v_head_dim]``.
    """

    key: Tensor
    value: Tensor

    def __init__(self, build: Build, prefix: str, shape: LatentShape) -> None:
        self._latent = shape
        self._kernel = build.linear("latent_up", module=prefix, own_switch=True)
        rows = shape.num_heads * (shape.qk_nope_head_dim + shape.v_head_dim)
        super().__init__(
            build,
            prefix,
            shape.kv_lora_rank,
            (rows,),
            site="latent_up",
            parallel="column",
            units=(shape.num_heads,),
        )

    def finish(self) -> None:
        """Multiplies the identity by the weight, which returns the matrix no matter in which layout the kernel keeps
        it."""
        super().finish()
        shape, run = self._latent, self._kernel.run
        if isinstance(run, (Switch, Shadowed)):
            run.select(shape.kv_lora_rank)
        identity = torch.eye(shape.kv_lora_rank, dtype=self._build.dtype, device=self._build.device)
        heads = run(identity, self.weight, None).unflatten(1, (-1, shape.qk_nope_head_dim + shape.v_head_dim))
        key, value = heads.split_with_sizes([shape.qk_nope_head_dim, shape.v_head_dim], dim=2)
        self.key = key.permute(1, 2, 0).contiguous()
        self.value = value.transpose(0, 1).contiguous()
        self.weight = None


class LatentAttention(Layer):
    """Attention from hidden states to hidden states: the projections, and one op between them.

    Tensor-parallel ranks shard the heads. All heads read the same latent vector, so every rank caches it.

    Args:
        prefix: the attention module's name in the checkpoint.
        index: position of this layer's cache in ``StepContext.caches``.
        cos_sin: float32 ``[positions, qk_rope_head_dim]``, see ``llmk.reference.rope.rotation``; shared by all layers.
        norm_eps: epsilon of the norms of the compressed vectors.
    """

    def __init__(
        self,
        build: Build,
        prefix: str,
        shape: LatentShape,
        *,
        index: int,
        cos_sin: Tensor,
        norm_eps: float,
    ) -> None:
        self._op = build.kernel("op", "latent_attention.whole", attention="latent_attention")
        self._index = index
        self._cos_sin = cos_sin
        self._eps = norm_eps
        self._sizes = (shape.q_lora_rank or 0, shape.row_size)
        self._qk_head_dim = shape.qk_head_dim
        hidden, rank, heads = shape.hidden_size, shape.q_lora_rank, shape.num_heads
        self.q_norm: RMSNorm | None = None
        if rank is None:
            self.down = Linear(
                build, f"{prefix}.kv_a_proj_with_mqa", hidden, (shape.row_size,), site="latent_down", bias=shape.bias
            )
        else:
            self.down = Linear(
                build,
                f"{prefix}.qkv_a_proj",
                hidden,
                (rank, shape.row_size),
                site="latent_down",
                parts=("q_a_proj", "kv_a_proj_with_mqa"),
                bias=shape.bias,
            )
            self.q_norm = RMSNorm(build, f"{prefix}.q_a_layernorm", rank, norm_eps, site="latent_q_norm")
        self.q = Linear(
            build,
            f"{prefix}.q_proj" if rank is None else f"{prefix}.q_b_proj",
            rank or hidden,
            (heads * shape.qk_head_dim,),
            site="latent_q",
            parallel="column",
            units=(heads,),
        )
        self._norm = Parameter(build, [f"{prefix}.kv_a_layernorm.weight"], [shape.kv_lora_rank], dummy_std=None)
        super().__init__(build, [self._norm])
        self.up = LatentUp(build, f"{prefix}.kv_b_proj", shape)
        out_size = heads * shape.v_head_dim
        self.out = Linear(build, f"{prefix}.o_proj", out_size, (hidden,), site="out", bias=shape.bias, parallel="row")

    def finish(self) -> None:
        self._norm_weight = self._norm.take()

    def __call__(self, x: Tensor, step: StepContext) -> Tensor:
        """Maps hidden states ``[tokens, hidden]`` to ``[tokens, hidden]``."""
        down = self.down(x)
        if self.q_norm is None:
            q, latent = self.q(x), down
        else:
            compressed, latent = down.split_with_sizes(self._sizes, 1)
            q = self.q(self.q_norm(compressed))
        out = self._op(
            q.unflatten(1, (-1, self._qk_head_dim)),
            latent,
            self._norm_weight,
            self._eps,
            self.up.key,
            self.up.value,
            step.positions,
            self._cos_sin,
            step.caches[self._index],
            step.meta[self._index],
        )
        return self.out(out.flatten(1))

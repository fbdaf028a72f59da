"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): the cache stores one compressed vector per token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from llmk.nn.build import Switch
from llmk.nn.context import StepContext
from llmk.nn.layer import Layer, Parameter
from llmk.nn.linear import Linear
from llmk.nn.shadow import Shadowed

if TYPE_CHECKING:
    from llmk.nn.build import Build, WeightKernel
    from llmk.tree import LatentShape


class LatentUp(Linear):
    """The up-projection of latent vectors to every head's key and value. It is never run as a linear layer: its weight
    is split into ``key`` and ``value``, which attention absorbs.

    Attributes:
        key: ``[heads, qk_nope_head_dim, kv_lora_rank]``.
        value: ``[heads, kv_lora_rank, v_head_dim]``.
    """

    key: Tensor
    value: Tensor

    def __init__(self, build: Build, prefix: str, shape: LatentShape, *, site: str = "latent_up") -> None:
        self._latent = shape
        self._kernel = build.linear(site, module=prefix, own_switch=True)
        rows = shape.num_heads * (shape.qk_nope_head_dim + shape.v_head_dim)
        super().__init__(
            build,
            prefix,
            shape.kv_lora_rank,
            (rows,),
            site=site,
            parallel="column",
            units=(shape.num_heads,),
        )

    def finish(self) -> None:
        super().finish()
        shape = self._latent
        columns = absorbed(self._kernel, self.weight, shape.kv_lora_rank, self._build)
        heads = columns.unflatten(1, (-1, shape.qk_nope_head_dim + shape.v_head_dim))
        key, value = heads.split_with_sizes([shape.qk_nope_head_dim, shape.v_head_dim], dim=2)
        self.key = key.permute(1, 2, 0).contiguous()
        self.value = value.transpose(0, 1).contiguous()
        self.weight = None


class LatentAttention(Layer):
    """Norm of the latent vector, RoPE, the paged cache and attention, in one op.

    Tensor-parallel ranks shard the heads. All heads read the same latent vector, so every rank caches it.

    Args:
        prefix: the attention module's name in the checkpoint.
        index: position of this layer's cache in ``StepContext.caches``.
        cos_sin: float32 ``[positions, qk_rope_head_dim]``, see ``llmk.reference.rope.rotation``; shared by all layers.
            ``None``: queries and keys are not rotated.
        norm_eps, norm_scale: epsilon of the norm, and a factor of its result.
        op_site: the site of the op over the attention site ``site``.
    """

    def __init__(
        self,
        build: Build,
        prefix: str,
        shape: LatentShape,
        *,
        index: int,
        cos_sin: Tensor | None,
        norm_eps: float,
        norm_scale: float = 1.0,
        site: str = "latent_attention",
        op_site: str = "latent_attention.whole",
    ) -> None:
        self._op = build.kernel("op", op_site, attention=site)
        self._index = index
        self._is_rotated = cos_sin is not None
        self._cos_sin = _unrotated(build, shape.qk_rope_head_dim) if cos_sin is None else cos_sin
        self._eps, self._norm_scale = norm_eps, norm_scale
        self._qk_head_dim = shape.qk_head_dim
        self._norm = Parameter(build, [f"{prefix}.kv_a_layernorm.weight"], [shape.kv_lora_rank], dummy_std=None)
        super().__init__(build, [self._norm])

    def finish(self) -> None:
        self._norm_weight = self._norm.take() * self._norm_scale

    def __call__(self, q: Tensor, latent: Tensor, up: LatentUp, step: StepContext) -> Tensor:
        """Maps queries ``[tokens, heads * qk_head_dim]`` and latent vectors with the shared key, ``[tokens,
        row_size]``, to ``[tokens, heads * v_head_dim]``; head counts are this rank's."""
        out: Tensor = self._op(
            q.unflatten(1, (-1, self._qk_head_dim)),
            latent,
            self._norm_weight,
            self._eps,
            up.key,
            up.value,
            step.positions if self._is_rotated else torch.zeros_like(step.positions),
            self._cos_sin,
            step.caches[self._index],
            step.meta[self._index],
        )
        return out.flatten(1)


def absorbed(kernel: WeightKernel, weight: Any, size: int, build: Build) -> Tensor:
    """The matrix ``[size, rows]`` of a layer that is never run: the identity times its weight, no matter in which
    layout the kernel keeps it."""
    run = kernel.run
    if isinstance(run, (Switch, Shadowed)):
        run.select(size)
    found: Tensor = run(torch.eye(size, dtype=build.dtype, device=build.device), weight, None)
    return found


def _unrotated(build: Build, rotary_dim: int) -> Tensor:
    """The angles of position 0 alone, which leave queries and keys as they are: float32 ``[1, rotary_dim]``."""
    table = torch.zeros(1, rotary_dim, device=build.device)
    table[:, : rotary_dim // 2] = 1.0
    return table

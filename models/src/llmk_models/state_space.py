"""Mamba-2's mixer in hybrids (arXiv:2405.21060), and which of their layers have attention instead. Imports no torch."""

from __future__ import annotations

from math import inf
from typing import Any, NamedTuple

from llmk.tree import Config, StateSpaceSizes

_HINT = "compare the checkpoint's config.json with the one that the model's authors publish"
_ATTENTION, _RECURRENCE = ("full_attention", "attention"), ("linear_attention", "mamba")
"""How configs name layers with attention, and others: the present name first."""


class ScanKeys(NamedTuple):
    """The config's keys of the sizes of a selective scan, as Bamba and Granite 4 have them."""

    heads: str = "mamba_n_heads"
    head_dim: str = "mamba_d_head"
    groups: str = "mamba_n_groups"
    state: str = "mamba_d_state"
    kernel: str = "mamba_d_conv"
    bias: str = "mamba_conv_bias"
    limits: str = "time_step_limit"
    inner: str = ""
    """Of the number of channels; empty: it follows from others."""


def scan_sizes(
    config: Config, inner: int, keys: ScanKeys, *, head_dim: int = 0, groups: int = 1, state: int = 256, **more: Any
) -> StateSpaceSizes:
    """The sizes of a config, which must have ``inner`` channels.

    Args:
        head_dim, groups, state: defaults; a ``head_dim`` of 0, and ``"auto"`` in the config, mean ``inner / heads``.
        more: further fields.

    Raises:
        CheckpointError: they contradict each other.
    """
    heads = config.size(keys.heads, 128)
    low, high = config.limits(keys.limits, (0.0, inf))
    auto = config.values.get(keys.head_dim) == "auto"
    sizes = StateSpaceSizes(
        num_heads=heads,
        head_dim=max(1, inner // heads) if auto else config.size(keys.head_dim, head_dim or max(1, inner // heads)),
        num_groups=config.size(keys.groups, groups),
        state_size=config.size(keys.state, state),
        conv_kernel=config.size(keys.kernel, 4),
        conv_bias=config.flag(keys.bias, True),
        dt_limits=(low, None if high == inf else high),
        **more,
    )
    if inner != sizes.inner_size:
        stated = f" ({keys.inner})" if keys.inner else ""
        problem = f"{keys.heads} * {keys.head_dim} = {sizes.inner_size}, but {inner} channels of its mixers{stated}"
        raise config.refuse(problem, _HINT)
    if heads % sizes.num_groups:
        raise config.refuse(f"{keys.heads} = {heads}, which {keys.groups} = {sizes.num_groups} does not divide", _HINT)
    return sizes


def attending_layers(config: Config, num_layers: int, default: tuple[bool, ...]) -> tuple[bool, ...]:
    """Which layers have attention, by ``layer_types``, or by ``layers_block_type`` as older configs name it; else the
    ``default``. Raises CheckpointError."""
    kinds = config.texts("layer_types") or config.texts("layers_block_type")
    if not kinds:
        return default
    if len(kinds) != num_layers or set(kinds) - {*_ATTENTION, *_RECURRENCE}:
        raise config.refuse(
            f"num_hidden_layers = {num_layers} and layer_types of {len(kinds)} layers, of kinds "
            f"{', '.join(sorted(set(kinds)))}: each of the layers is {_ATTENTION[0]} or {_RECURRENCE[0]}",
            _HINT,
        )
    return tuple(kind in _ATTENTION for kind in kinds)

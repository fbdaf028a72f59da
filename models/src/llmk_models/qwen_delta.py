"""The sizes of Qwen's gated delta rule, and which layers have attention instead."""

from __future__ import annotations

from llmk.tree import Config, DeltaNetSizes
from llmk_models.state_space import attending_layers


def delta_sizes(config: Config) -> DeltaNetSizes:
    """The sizes of a config; numbers are the defaults of transformers' config classes. Raises CheckpointError."""
    sizes = DeltaNetSizes(
        num_heads=config.size("linear_num_value_heads", 32),
        num_key_heads=config.size("linear_num_key_heads", 16),
        key_dim=config.size("linear_key_head_dim", 128),
        value_dim=config.size("linear_value_head_dim", 128),
        conv_kernel=config.size("linear_conv_kernel_dim", 4),
    )
    if sizes.num_heads % sizes.num_key_heads:
        values, keys = f"linear_num_value_heads = {sizes.num_heads}", f"linear_num_key_heads = {sizes.num_key_heads}"
        hint = "compare the checkpoint's config.json with the one that the model's authors publish"
        raise config.refuse(f"{values}, which {keys} does not divide", hint)
    return sizes


def delta_attends(config: Config, num_layers: int) -> tuple[bool, ...]:
    """Which layers have full attention. By default, it is every ``full_attention_interval``-th; ``layer_types``
    overrides that. Raises CheckpointError."""
    every = config.size("full_attention_interval", 4)
    return attending_layers(config, num_layers, tuple((layer + 1) % every == 0 for layer in range(num_layers)))

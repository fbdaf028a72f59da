"""Recurrent layers pass the right arguments to their op; gated attention separates queries and gates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from plans import build, choice, piece

from llmk.api import RecurrentCache
from llmk.api.sharding import sharded_state
from llmk.nn import GatedAttention, GatedDeltaNet, Layer, StateSpaceMixer, StepContext
from llmk.nn.parallel import Parallel
from llmk.tree import DeltaNetSizes, Recurrent, Sites, StateSpaceSizes

MAMBA2 = StateSpaceSizes(num_heads=4, head_dim=3, num_groups=2, state_size=5, conv_kernel=4)
DELTA = DeltaNetSizes(num_heads=4, num_key_heads=2, key_dim=3, value_dim=5, conv_kernel=4)


def filled(layer: Layer) -> dict[str, torch.Tensor]:
    """Loads random values; returns them by their last names."""
    values = {}
    for parameter in layer.parameters:
        (name,) = parameter.names
        values[name.removeprefix("layer.")] = torch.randn(parameter.shape((0,)))
        parameter.load((0,), values[name.removeprefix("layer.")])
    layer.finish()
    return values


def context() -> StepContext:
    """A step in which the layer's cache is the second one."""
    return StepContext(torch.zeros(1), [None, "caches"], [None, "step"])


@pytest.mark.parametrize("bias", [True, False])
def test_state_space_mixer(bias: bool) -> None:
    made = build(choice("op", MAMBA2.site, piece("arguments")), dtype=torch.bfloat16)
    sizes = replace(MAMBA2, dt_limits=(0.1, 0.2), conv_bias=bias)
    layer = StateSpaceMixer(made, "layer", sizes, index=1, eps=0.5)
    values = filled(layer)
    given: Any = layer(torch.tensor([7.0]), context())
    projected, conv_weight, conv_bias, a, d, dt_bias, limits, norm, *rest = given
    assert torch.equal(projected, torch.tensor([7.0]))
    assert torch.equal(conv_weight, values["conv1d.weight"].squeeze(1).bfloat16())
    assert torch.equal(conv_bias, values["conv1d.bias"].bfloat16()) if bias else conv_bias is None
    assert torch.equal(a, -values["A_log"].exp())
    assert torch.equal(d, values["D"])
    assert torch.equal(dt_bias, values["dt_bias"])
    assert torch.equal(norm, values["norm.weight"].bfloat16())
    assert (limits, rest) == ((0.1, 0.2), [0.5, "caches", "step"])


def test_gated_delta_net() -> None:
    made = build(choice("op", DELTA.site, piece("arguments")), dtype=torch.bfloat16)
    layer = GatedDeltaNet(made, "layer", DELTA, index=1, eps=0.5)
    values = filled(layer)
    inputs = torch.randn(6, 1).unbind()
    given: Any = layer(*inputs, context())
    assert all(x is y for x, y in zip(given, inputs, strict=False))
    conv_weight, decay, dt_bias, norm, *rest = given[6:]
    assert torch.equal(conv_weight, values["conv1d.weight"].squeeze(1).bfloat16())
    assert torch.equal(decay, -values["A_log"].exp())
    assert torch.equal(dt_bias, values["dt_bias"])
    assert torch.equal(norm, values["norm.weight"].bfloat16())
    assert rest == [0.5, "caches", "step"]


@pytest.mark.parametrize(("kind", "sizes"), [(StateSpaceMixer, MAMBA2), (GatedDeltaNet, DELTA)])
@pytest.mark.parametrize("tensor", [1, 2])
def test_the_cache_spec_matches_the_facts(kind: Any, sizes: Any, tensor: int) -> None:
    made = build(choice("op", sizes.site, piece("arguments")), parallel=Parallel(tensor_size=tensor))
    layer = kind(made, "layer", sizes, index=0, eps=0.5)
    sites = Sites([Recurrent(sizes=sizes, eps=0.5) for _ in range(3)], "float32")
    (facts,), (op,) = sites.of("recurrent"), sites.of("ops")
    share = sharded_state(facts, tensor)
    own = replace(sizes, **{name: op.facts[name] // tensor for name in op.divided})
    assert share.tensors == own.state("float32")
    assert (share.units, facts.units) == (own.units, sizes.units)
    assert layer.cache_spec == RecurrentCache.of(share.tensors, share.inputs)
    assert (facts.site, facts.num_layers, op.site, op.op) == (sizes.site, 3, sizes.site, sizes.site)
    assert layer.cache_spec.page_bytes == sum(4 * torch.Size(tensor.shape).numel() for tensor in share.tensors)


def test_a_share_of_a_state_space_mixer() -> None:
    """The second of two groups: of channels, each kind has its own rows."""
    made = build(choice("op", MAMBA2.site, piece("arguments")), parallel=Parallel(1, 2))
    layer = StateSpaceMixer(made, "layer", MAMBA2, index=1, eps=0.5)
    values = filled(layer)
    given: Any = layer(torch.tensor([7.0]), context())
    _, conv_weight, conv_bias, a, d, dt_bias, _, norm, *_ = given
    channels = [*range(6, 12), *range(17, 22), *range(27, 32)]
    assert torch.equal(conv_weight, values["conv1d.weight"].squeeze(1)[channels])
    assert torch.equal(conv_bias, values["conv1d.bias"][channels])
    assert torch.equal(a, -values["A_log"].exp()[2:])
    assert torch.equal(d, values["D"][2:])
    assert torch.equal(dt_bias, values["dt_bias"][2:])
    assert torch.equal(norm, values["norm.weight"][6:])


def test_a_share_of_a_gated_delta_net() -> None:
    """The first of two key heads, with its two heads."""
    made = build(choice("op", DELTA.site, piece("arguments")), parallel=Parallel(0, 2))
    layer = GatedDeltaNet(made, "layer", DELTA, index=1, eps=0.5)
    values = filled(layer)
    given: Any = layer(*torch.randn(6, 1), context())
    conv_weight, decay, dt_bias, norm, *_ = given[6:]
    channels = [*range(3), *range(6, 9), *range(12, 22)]
    assert torch.equal(conv_weight, values["conv1d.weight"].squeeze(1)[channels])
    assert torch.equal(decay, -values["A_log"].exp()[:2])
    assert torch.equal(dt_bias, values["dt_bias"][:2])
    assert torch.equal(norm, values["norm.weight"])


def test_gated_attention_scales_each_head_by_its_own_gate() -> None:
    made = build(
        choice("attention", "attention", piece("FewAttention")),
        choice("op", "attention.whole", piece("echo_queries")),
        choice("op", "attention_gate", piece("times")),
    )
    layer = GatedAttention(made, "layer", index=1, num_heads=3, num_kv_heads=1, head_dim=4, cos_sin=torch.zeros(1, 4))
    queries, gates, others = torch.randn(5, 3, 4), torch.randn(5, 3, 4), torch.randn(5, 8)
    qkv = torch.cat((torch.cat((queries, gates), 2).flatten(1), others), 1)
    assert torch.equal(layer(qkv, context()), (queries * gates).flatten(1))

"""Recurrent layers hand their op what it is to have; gated attention takes queries and gates apart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from plans import build, choice, piece

from llmk.api import RecurrentCache
from llmk.nn import GatedAttention, GatedDeltaNet, Layer, StateSpaceMixer, StepContext
from llmk.nn.facts import DeltaNetSizes, StateSpaceSizes, recurrent_site

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
    mixed, gate, a, b = torch.randn(4, 1)
    given: Any = layer(mixed, gate, a, b, context())
    assert all(x is y for x, y in zip(given, (mixed, gate, a, b), strict=False))
    conv_weight, decay, dt_bias, norm, *rest = given[4:]
    assert torch.equal(conv_weight, values["conv1d.weight"].squeeze(1).bfloat16())
    assert torch.equal(decay, -values["A_log"].exp())
    assert torch.equal(dt_bias, values["dt_bias"])
    assert torch.equal(norm, values["norm.weight"].bfloat16())
    assert rest == [0.5, "caches", "step"]


@pytest.mark.parametrize(("kind", "sizes"), [(StateSpaceMixer, MAMBA2), (GatedDeltaNet, DELTA)])
def test_the_layer_keeps_what_the_facts_say(kind: Any, sizes: Any) -> None:
    layer = kind(build(choice("op", sizes.site, piece("arguments"))), "layer", sizes, index=0, eps=0.5)
    facts, op = recurrent_site(sizes, 3, "float32")
    assert layer.cache_spec == RecurrentCache.of(facts.tensors)
    assert (facts.site, facts.num_layers, op.site, op.op) == (sizes.site, 3, sizes.site, sizes.site)
    assert layer.cache_spec.page_bytes == sum(4 * torch.Size(tensor.shape).numel() for tensor in facts.tensors)


def test_gated_attention_scales_each_head_by_its_own_gate() -> None:
    made = build(
        choice("attention", "attention", piece("EchoAttention")),
        choice("op", "attention.qk_norm_rope_write_kv", piece("echo_queries")),
        choice("op", "attention_gate", piece("times")),
    )
    layer = GatedAttention(made, "layer", index=1, num_heads=3, num_kv_heads=1, head_dim=4, cos_sin=torch.zeros(1, 4))
    queries, gates, others = torch.randn(5, 3, 4), torch.randn(5, 3, 4), torch.randn(5, 8)
    qkv = torch.cat((torch.cat((queries, gates), 2).flatten(1), others), 1)
    assert torch.equal(layer(qkv, context()), (queries * gates).flatten(1))

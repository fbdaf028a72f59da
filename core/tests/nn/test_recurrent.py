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
from llmk.nn.recurrent.lightning import LightningAttention
from llmk.tree import DeltaNetSizes, KimiDeltaSizes, LightningSizes, Recurrent, Sites, StateSpaceSizes

MAMBA2 = StateSpaceSizes(num_heads=4, head_dim=3, num_groups=2, state_size=5, conv_kernel=4)
DELTA = DeltaNetSizes(num_heads=4, num_key_heads=2, key_dim=3, value_dim=5, conv_kernel=4)

KIMI = KimiDeltaSizes(num_heads=4, num_key_heads=4, key_dim=3, value_dim=5, conv_kernel=4, decay_bound=-5.0)
LIGHTNING = LightningSizes(num_heads=4, head_dim=3)


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


@pytest.mark.parametrize(("kind", "sizes"), [(StateSpaceMixer, MAMBA2), (GatedDeltaNet, DELTA), (GatedDeltaNet, KIMI)])
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


@pytest.mark.parametrize("rank", [0, 1])
def test_kimi_delta_attention_and_its_share(rank: int) -> None:
    """Its convolution is stored in three; its decays are those of a head's elements, with further dimensions in some
    checkpoints; options come by name."""
    made = build(choice("op", KIMI.site, piece("named_arguments")), parallel=Parallel(rank, 2))
    layer = GatedDeltaNet(made, "layer", KIMI, index=1, eps=0.5)
    conv, a_log, dt_bias, norm = layer.parameters
    kinds = [torch.randn(rows, 1, 4) for rows in KIMI.conv_parts]
    for shard, values in enumerate(kinds):
        conv.load((shard,), values)
    heads, biases, weight = torch.randn(1, 1, 4, 1), torch.randn(12), torch.randn(5)
    assert a_log.fits((0,), tuple(heads.shape))
    assert not a_log.fits((0,), (1, 1, 5, 1))
    for parameter, values in ((a_log, heads), (dt_bias, biases), (norm, weight)):
        parameter.load((0,), values)
    layer.finish()
    given: Any = layer(*torch.randn(6, 1), context())
    conv_weight, decay, bias, norm_weight, *rest = given[6:]
    own = [values.squeeze(1).chunk(2)[rank] for values in kinds]
    assert [name.removeprefix("layer.") for name in conv.names] == [f"{kind}_conv1d.weight" for kind in "qkv"]
    assert norm.names == ("layer.o_norm.weight",)
    assert torch.equal(conv_weight, torch.cat(own))
    assert torch.equal(decay, -heads.flatten().exp().chunk(2)[rank])
    assert torch.equal(bias, biases.view(4, 3).chunk(2)[rank])
    assert torch.equal(norm_weight, weight)
    assert rest == [0.5, "caches", "step", {"gate_activation": "sigmoid", "decay_bound": -5.0}]
    assert "decay_bound" not in replace(KIMI, decay_bound=None).facts


@pytest.mark.parametrize("rank", [0, 1])
def test_lightning_attention_has_the_decays_of_its_heads(rank: int) -> None:
    made = build(choice("op", LIGHTNING.site, piece("arguments")), parallel=Parallel(rank, 2))
    layer = LightningAttention(made, LIGHTNING, (-1.0, -2.0, -3.0, -4.0), index=1, op_site=LIGHTNING.site)
    layer.finish()
    given: Any = layer(*torch.randn(3, 1), context())
    assert given[3].tolist() == [[-1.0, -2.0], [-3.0, -4.0]][rank]
    assert given[4:] == ("caches", "step")
    assert [tensor.shape for tensor in layer.cache_spec.tensors] == [(2, 3, 3)]


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

"""Packed linear layers, heads with a switch of their own, and tied embeddings."""

from __future__ import annotations

import pytest
import torch
from plans import Build, build, choice, piece

from llmk.api import StoredTensor
from llmk.nn import Embedding, Linear, LMHead, SandwichNorm

SIZES = (6, 2, 2)
PARTS = ("q_proj", "k_proj", "v_proj")


def packed(made: Build, *, bias: bool = False) -> Linear:
    return Linear(made, "attn.qkv_proj", 5, SIZES, site="qkv", parts=PARTS, bias=bias)


@pytest.mark.parametrize("kernel", [("linear", ""), ("linear_transposed", "transpose")])
def test_packed_shards_are_in_order_for_any_order_of_arrival(kernel: tuple[str, str]) -> None:
    name, prepare = kernel
    layer = packed(
        build(choice("linear", "qkv", piece(name, prepare=prepare), in_features=5, out_features=10)), bias=True
    )
    weights = [torch.randn(size, 5) for size in SIZES]
    biases = [torch.randn(size) for size in SIZES]
    weight, bias = layer.parameters
    for i in (2, 0, 1):
        assert not weight.complete
        weight.load(weight.targets[f"attn.{PARTS[i]}.weight"], weights[i])
        bias.load(bias.targets[f"attn.{PARTS[i]}.bias"], biases[i])
    assert weight.complete
    layer.finish()
    x = torch.randn(4, 5)
    torch.testing.assert_close(layer(x), x @ torch.cat(weights).t() + torch.cat(biases))


def test_one_tensor_may_cover_all_shards() -> None:
    layer = packed(build(choice("linear", "qkv", piece("linear"), in_features=5, out_features=10)))
    (weight,) = layer.parameters
    shards = weight.targets["attn.qkv_proj.weight"]
    assert (shards, weight.shape(shards)) == ((0, 1, 2), (10, 5))
    whole = torch.randn(10, 5)
    weight.load(shards, whole)
    assert weight.complete
    layer.finish()
    assert torch.equal(layer.weight, whole)


def test_values_are_cast_to_the_engine_dtype() -> None:
    made = build(choice("linear", "qkv", piece("linear"), in_features=5, out_features=10), dtype=torch.bfloat16)
    layer = packed(made)
    layer.parameters[0].load((0, 1, 2), torch.randn(10, 5))
    layer.finish()
    assert layer.weight.dtype == torch.bfloat16


def test_a_quantized_site_takes_what_the_checkpoint_stores() -> None:
    """All stored tensors are passed to the kernel, packed along their rows, in their own dtypes."""
    query = {"in_features": 5, "out_features": 10, "weight_format": "int8_channel"}
    layer = packed(build(choice("linear", "qkv", piece("linear_scaled", prepare="keep"), **query)))
    values = {part: torch.randint(-99, 99, (n, 5), dtype=torch.int8) for part, n in zip(PARTS, SIZES, strict=True)}
    scales = {part: torch.rand(n, 1) for part, n in zip(PARTS, SIZES, strict=True)}
    stored = {
        f"attn.{part}": [
            StoredTensor(f"attn.{part}.weight", None, "I8", tuple(values[part].shape), 0, 0),  # type: ignore[arg-type]
            StoredTensor(f"attn.{part}.scale", None, "F32", tuple(scales[part].shape), 0, 0),  # type: ignore[arg-type]
        ]
        for part in PARTS
    }
    layer.discover(stored)
    for parameter in layer.parameters:
        source = values if parameter.dtype == torch.int8 else scales
        for name, shards in parameter.targets.items():
            parameter.load(shards, source[name.split(".")[1]])
    layer.finish()
    x = torch.randn(3, 5)
    dense = torch.cat([values[part].float() * scales[part] for part in PARTS])
    torch.testing.assert_close(layer(x), x @ dense.t())


def test_dummy_values_depend_on_name_and_seed_only() -> None:
    def filled(seed: int, sizes: tuple[int, ...], parts: tuple[str, ...]) -> torch.Tensor:
        made = build(choice("linear", "qkv", piece("linear"), in_features=5, out_features=sum(sizes)))
        layer = Linear(made, "attn.qkv_proj", 5, sizes, site="qkv", parts=parts)
        layer.parameters[0].fill(seed)
        layer.finish()
        return layer.weight

    once = filled(3, SIZES, PARTS)
    assert torch.equal(once, filled(3, SIZES, PARTS))
    assert torch.equal(once[6:8], filled(3, (2,), ("k_proj",)))
    assert not torch.equal(once, filled(4, SIZES, PARTS))


@pytest.mark.parametrize("kernel", [("linear", ""), ("linear_transposed", "transpose")])
def test_a_tied_head_multiplies_by_the_embedding(kernel: tuple[str, str]) -> None:
    name, prepare = kernel
    made = build(
        choice("op", "embedding", piece("embed")),
        choice("linear", "lm_head", piece(name, prepare=prepare), in_features=4, out_features=7),
        dtype=torch.bfloat16,
    )
    table = Embedding(made, "embed", 7, 4, aliases=("head.weight",))
    head = LMHead(made, "head", 4, 7, tied_to=table)
    weight = torch.randn(7, 4).bfloat16()
    table.parameters[0].load(table.parameters[0].targets["head.weight"], weight)
    table.finish()
    hidden = torch.randn(2, 4).bfloat16()
    logits = head(hidden)
    torch.testing.assert_close(logits, hidden @ weight.t())
    assert torch.equal(table(torch.tensor([6, 0])), weight[[6, 0]])


def test_a_scaled_table_and_a_capped_head() -> None:
    made = build(
        choice("op", "scaled_embedding", piece("embed_scaled")),
        choice("op", "softcap", piece("clip")),
        choice("linear", "lm_head", piece("linear"), in_features=4, out_features=7),
    )
    table = Embedding(made, "embed", 7, 4, site="scaled_embedding", scale=3.0)
    head = LMHead(made, "head", 4, 7, tied_to=table, softcap=0.5)
    weight = torch.randn(7, 4)
    table.parameters[0].load((0,), weight)
    table.finish()
    assert torch.equal(table(torch.tensor([6])), 3 * weight[[6]])
    hidden = torch.randn(2, 4)
    torch.testing.assert_close(head(hidden), (hidden @ weight.t()).clamp(-0.5, 0.5))


def test_a_sandwich_norm_also_norms_the_previous_block() -> None:
    made = build(choice("op", "sandwich_norm", piece("sandwich")), choice("op", "rms_norm", piece("norm")))
    first = SandwichNorm(made, None, "layers.0.input_norm", 3, 0.25)
    later = SandwichNorm(made, "layers.0.post_norm", "layers.1.input_norm", 3, 0.25)
    values = {name: torch.randn(3) for name in ("layers.0.input_norm", "layers.0.post_norm", "layers.1.input_norm")}
    for layer in (first, later):
        for parameter in layer.parameters:
            (name,) = parameter.names
            parameter.load((0,), values[name.removesuffix(".weight")])
        layer.finish()
    x, residual = torch.randn(2, 3), torch.randn(2, 3)
    normed, kept = first(x, None)
    torch.testing.assert_close(normed, x * values["layers.0.input_norm"] + 0.25)
    assert torch.equal(kept, x)
    normed, kept = later(x, residual)
    torch.testing.assert_close(kept, residual + x * values["layers.0.post_norm"] + 0.25)
    torch.testing.assert_close(normed, kept * values["layers.1.input_norm"] + 0.25)


def test_the_head_chooses_by_its_own_rows() -> None:
    """A long prefill needs one row of logits: the step's token count must not choose the kernel."""
    pieces = (piece("linear_says_few", band=(0, 2)), piece("linear_says_many", band=(2, 1 << 31)))
    made = build(choice("linear", "lm_head", *pieces, in_features=4, out_features=7))
    head = LMHead(made, "head", 4, 7)
    head.parameters[0].load((0,), torch.zeros(7, 4))
    head.finish()
    made.select(2048)
    assert head(torch.zeros(1, 4)).unique().tolist() == [1.0]
    assert head(torch.zeros(2, 4)).unique().tolist() == [2.0]

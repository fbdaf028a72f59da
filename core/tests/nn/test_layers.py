"""Packed linear layers, heads with a switch of their own, and tied embeddings."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from plans import Build, build, choice, from_reference, piece

from llmk.api import CheckpointFile, Choice, StoredTensor
from llmk.nn import Embedding, Layer, Linear, LMHead, SandwichNorm
from llmk.nn.parallel import Parallel
from llmk.reference.quantize import quantize_int8_group
from llmk.reference.quantized_weight import prepare_int8_group

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


def packed_head(
    made: Build, scale: float | None = None, *, apart: bool = False
) -> tuple[Embedding, LMHead, list[Layer]]:
    """A table and the head that is tied to it, both loaded with ``PACKED``; and the layers that own it. ``apart``: the
    head is on this stage, the table on another."""
    site = "embedding" if scale is None else "scaled_embedding"
    with made.stage(here=not apart):
        table = Embedding(made, "embed", 7, 4, site=site, scale=scale)
    head = LMHead(made, "head", 4, 7, tied_to=table)
    owners: list[Layer] = [layer for layer in (table, head) if layer.parameters]
    stored = [
        StoredTensor(f"embed.{name}", CheckpointFile(Path(), "f"), dtype, tuple(PACKED[name].shape), 0, 0)
        for name, dtype in (("weight", "I8"), ("weight_scale", "F32"))
    ]
    for layer in (table, head):
        layer.discover({"embed": stored})
    for layer in owners:
        for parameter in layer.parameters:
            parameter.load((0,), PACKED[parameter.names[0].removeprefix("embed.")])
        layer.finish()
    return table, head, owners


PACKED = quantize_int8_group(torch.randn(7, 4), 2)
EXACT = prepare_int8_group(PACKED).dequantize(torch.float32)


def head_choices(*more: Choice) -> tuple[Choice, ...]:
    prepare = "llmk.reference.quantized_weight:prepare_int8_group"
    quantized = from_reference("linear:linear_dequantized", prepare=prepare)
    sizes = {"in_features": 4, "out_features": 7, "weight_format": "int8_group", "lookup": True}
    return (*more, choice("linear", "lm_head", quantized, **sizes))


def test_a_table_that_stays_packed_is_held_once_for_lookups_and_logits() -> None:
    made = build(*head_choices(choice("op", "embedding", piece("embed"))))
    table, head, owners = packed_head(made)
    assert owners == [table]
    assert head.weight is table.weight
    ids, hidden = torch.tensor([6, 0, 6]), torch.randn(2, 4)
    assert torch.equal(table(ids), EXACT[ids])
    torch.testing.assert_close(head(hidden), hidden @ EXACT.T)


def test_a_packed_table_is_scaled() -> None:
    made = build(*head_choices(choice("op", "scaled_embedding", piece("embed_scaled"))))
    table, *_ = packed_head(made, scale=3.0)
    assert torch.equal(table(torch.tensor([6, 1])), 3 * EXACT[[6, 1]])


def test_a_packed_table_on_another_stage_is_loaded_for_the_head_too() -> None:
    made = build(*head_choices(choice("op", "embedding", piece("embed"))))
    table, head, owners = packed_head(made, apart=True)
    assert owners == [table, head]
    hidden = torch.randn(2, 4)
    torch.testing.assert_close(head(hidden), hidden @ EXACT.T)


def test_ranks_share_a_packed_table() -> None:
    ids, hidden = torch.tensor([6, 0, 3]), torch.randn(2, 4)
    found, logits = [], []
    for rank in range(2):
        place = Parallel(tensor_rank=rank, tensor_size=2)
        made = build(*head_choices(choice("op", "embedding", piece("embed"))), parallel=place)
        table, head, _ = packed_head(made)
        found.append(table(ids))
        logits.append(hidden @ head.weight.dequantize(torch.float32).T)
    assert torch.equal(found[0] + found[1], EXACT[ids])
    torch.testing.assert_close(torch.cat(logits, dim=1)[:, :7], hidden @ EXACT.T)


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

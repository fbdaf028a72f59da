"""Every type against the ``gguf`` package: dequantized while it loads, and kept packed."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf_files import quantized

from llmk.api import CheckpointFile
from llmk.reference import quantized_weight
from llmk_gguf.blocks import INT4, TYPES
from llmk_gguf.header import StoredBlocks
from llmk_gguf.packed import Format, formats_of, packed_tensors
from llmk_gguf.tensors import Named, plain_tensor
from llmk_gguf.values import Dequantize, can_dequantize

KINDS = [kind.name for kind in gguf.GGMLQuantizationType if can_dequantize(kind.name)]


def random_blocks(kind: str, rows: int, blocks: int) -> torch.Tensor:
    """Any bytes, but for float16 numbers, which are finite and small."""
    size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1]
    random = np.random.default_rng(len(kind) + rows)
    data = random.integers(0, 256, (rows, blocks, size), np.uint8)
    halves = {"Q8_0": (0,), "Q4_0": (0,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}[kind]
    for at in halves:
        data[..., at : at + 2] = random.uniform(-1, 1, (rows, blocks, 1)).astype(np.float16).view(np.uint8)
    data[0, 0] = 0
    return torch.from_numpy(data.reshape(rows, -1))


def expected(kind: str, stored: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(gguf.quants.dequantize(stored.numpy(), gguf.GGMLQuantizationType[kind]))


def packed(kind: str, stored: torch.Tensor, format: Format, head_dim: int = 0) -> torch.Tensor:
    """The weight that kernels of the format see."""
    inputs = expected(kind, stored).shape[1]
    file = CheckpointFile(Path("/nowhere"), "model.gguf")
    blocks = StoredBlocks("t", file, kind, (stored.shape[0], inputs), 0, stored.numel())
    tensors = {}
    for tensor in packed_tensors(Named("module.weight", blocks, head_dim), format):
        assert tensor.decode is not None
        found = tensor.decode(stored)
        assert tuple(found.shape) == tensor.shape
        assert found.dtype == {"I8": torch.int8, "U8": torch.uint8, "F32": torch.float32}[tensor.dtype]
        tensors[tensor.name.removeprefix("module.")] = found
    prepared = getattr(quantized_weight, f"prepare_{format.name}")(tensors)
    weight: torch.Tensor = prepared.dequantize(torch.float32)
    return weight


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(("rows", "blocks"), [(1, 1), (5, 3), (16, 7)])
def test_packed_weights_are_those_of_the_blocks(kind: str, rows: int, blocks: int) -> None:
    stored, group = random_blocks(kind, rows, blocks), TYPES[kind].group
    plain = expected(kind, stored)
    has_zero = kind in ("Q4_K", "Q5_K")
    formats = [Format("int8_group", each, zero) for each in {16, group} for zero in {has_zero, True}]
    if TYPES[kind].bits == 4:
        formats += [Format(INT4, group, has_zero), Format(INT4, group, True)]
    for format in formats:
        found = packed(kind, stored, format)
        torch.testing.assert_close(found, plain, rtol=1e-5, atol=1e-5 * float(plain.abs().max()))


@pytest.mark.parametrize("kind", TYPES)
def test_rows_of_heads_are_put_in_order(kind: str) -> None:
    stored, group = random_blocks(kind, 12, 2), TYPES[kind].group
    plain = expected(kind, stored)
    order = [head * 6 + pair * 2 + half for head in range(2) for half in range(2) for pair in range(3)]
    found = packed(kind, stored, Format("int8_group", group, kind in ("Q4_K", "Q5_K")), head_dim=6)
    torch.testing.assert_close(found, plain[order], rtol=1e-5, atol=1e-5 * float(plain.abs().max()))
    torch.testing.assert_close(Dequantize(kind, 0.5, 6)(stored), plain[order] + 0.5)


def test_groups_with_a_minimum_alone_keep_it() -> None:
    """Numbers and scale of nothing, as a row of equal negative weights has."""
    rows = np.full((2, 256), -0.75, np.float32)
    stored = torch.from_numpy(quantized(rows, "Q4_K"))
    stored[:, 4:8] &= 0xC0
    stored[:, 0:2] = 0
    plain = expected("Q4_K", stored)
    assert (plain < -0.7).all()
    for format in (Format(INT4, 32, True), Format("int8_group", 32, True)):
        torch.testing.assert_close(packed("Q4_K", stored, format), plain)


@pytest.mark.parametrize("kind", KINDS)
def test_all_types_that_the_package_reads_are_dequantized(kind: str) -> None:
    size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1]
    stored = torch.zeros(4, 2 * size, dtype=torch.uint8)
    found = Dequantize(kind)(stored)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected(kind, stored).float(), equal_nan=True)


def test_modules_of_one_gemm_have_one_format() -> None:
    file = CheckpointFile(Path("/nowhere"), "model.gguf")

    def named(module: str, kind: str) -> Named:
        return Named(f"{module}.weight", StoredBlocks(module, file, kind, (32, 256), 0, 1))

    found = formats_of(
        [
            named("l.0.self_attn.q_proj", "Q4_K"),
            named("l.0.self_attn.k_proj", "Q4_K"),
            named("l.0.self_attn.v_proj", "Q6_K"),
            named("l.0.self_attn.o_proj", "Q4_K"),
            named("l.0.mlp.gate_proj", "Q4_0"),
            named("l.0.mlp.up_proj", "Q4_0"),
            named("l.0.mlp.down_proj", "Q5_0"),
            named("l.1.mlp.gate_proj", "Q8_0"),
            named("l.1.mlp.up_proj", "F16"),
            named("l.2.mlp.experts.0.gate_proj", "Q4_0"),
            named("l.2.mlp.experts.0.down_proj", "Q8_0"),
        ]
    )
    mixed = Format("int8_group", 16, True)
    assert found == {
        **{f"l.0.self_attn.{part}_proj": mixed for part in "qkv"},
        "l.0.self_attn.o_proj": Format(INT4, 32, True),
        "l.0.mlp.gate_proj": Format(INT4, 32, False),
        "l.0.mlp.up_proj": Format(INT4, 32, False),
        "l.2.mlp.experts.0.gate_proj": Format("int8_group", 32, False),
        "l.2.mlp.experts.0.down_proj": Format("int8_group", 32, False),
    }


def test_plain_numbers_are_read_into_place() -> None:
    file = CheckpointFile(Path("/nowhere"), "model.gguf")
    for kind in ("F32", "F16", "BF16"):
        tensor = plain_tensor(Named("module.weight", StoredBlocks("t", file, kind, (4, 8), 0, 128)), 1.0)
        assert (tensor.dtype, tensor.decode) == (kind, None)

"""The weight that latent attention splits, in any layout of the kernel."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from plans import build, choice, piece

from llmk.api import Piece
from llmk.nn import StepContext
from llmk.nn.latent import LatentAttention as LatentLayer
from llmk.nn.latent import LatentUp
from llmk.nn.parallel import Parallel
from llmk.tree import LatentAttention, LatentShape, Rope, Sites

SHAPE = LatentShape(
    hidden_size=16,
    num_heads=3,
    q_lora_rank=None,
    kv_lora_rank=5,
    qk_nope_head_dim=4,
    qk_rope_head_dim=2,
    v_head_dim=7,
    scale=0.5,
)


@pytest.mark.parametrize(
    "pieces",
    [
        (piece("linear"),),
        (piece("linear_transposed", prepare="transpose"),),
        (piece("linear_says_few", band=(0, 2)), piece("linear", band=(2, 1 << 31))),
    ],
    ids=["plain", "transposed", "piecewise"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_up_projection_is_split_exactly(pieces: tuple[Piece, ...], dtype: torch.dtype) -> None:
    layer = LatentUp(
        build(choice("linear", "latent_up", *pieces, in_features=5, out_features=33), dtype=dtype), "kv_b_proj", SHAPE
    )
    stored = torch.randn(33, 5).to(dtype)
    layer.parameters[0].load(layer.parameters[0].targets["kv_b_proj.weight"], stored)
    layer.finish()
    by_head = stored.view(3, 11, 5)
    assert torch.equal(layer.key, by_head[:, :4])
    assert torch.equal(layer.value, by_head[:, 4:].transpose(1, 2))
    assert layer.weight is None


def test_a_share_is_some_heads() -> None:
    layer = LatentUp(build(choice("linear", "latent_up", piece("linear")), parallel=Parallel(2, 3)), "up", SHAPE)
    stored = torch.randn(33, 5)
    layer.parameters[0].load((0,), stored)
    layer.finish()
    last = stored.view(3, 11, 5)[2:]
    assert torch.equal(layer.key, last[:, :4])
    assert torch.equal(layer.value, last[:, 4:].transpose(1, 2))


def test_facts_name_the_sites_and_sizes() -> None:
    rope = Rope.with_settings(2, 64, {"rope_type": "default", "rope_theta": 1e4})
    sites = Sites(LatentAttention.of("attn", SHAPE, rope, 1e-6).leaves(), "float32")
    (attention,) = sites.of("attention")
    assert (attention.num_kv_heads, attention.head_dim, attention.latent_dim, attention.scale) == (1, 7, 5, 0.5)
    assert {(f.site, f.in_features, f.out_features) for f in sites.of("linear")} == {
        ("latent_down", 16, 7),
        ("latent_q", 16, 18),
        ("latent_up", 5, 33),
        ("out", 21, 16),
    }
    assert [(op.op, op.attention) for op in sites.of("ops")] == [("latent_attention", "latent_attention")]


@pytest.mark.parametrize("is_rotated", [True, False])
def test_without_rotation_positions_are_those_of_no_angle(is_rotated: bool) -> None:
    attention = choice("attention", "latent_attention", piece("FewAttention"))
    made = build(attention, choice("op", "latent_attention.whole", piece("arguments")))
    cos_sin = torch.randn(9, 2) if is_rotated else None
    layer = LatentLayer(made, "layer", SHAPE, index=0, cos_sin=cos_sin, norm_eps=0.5)
    layer.parameters[0].load((0,), torch.randn(5))
    layer.finish()
    up = LatentUp(build(choice("linear", "latent_up", piece("linear"))), "up", SHAPE)
    up.key = up.value = torch.zeros(1)
    step, seen = StepContext(torch.tensor([3, 7]), ["cache"], ["meta"]), []

    def record(*given: Any) -> torch.Tensor:
        seen.extend(given)
        return torch.zeros(2, 3, 7)

    layer._op = record
    layer(torch.randn(2, 18), torch.randn(2, 7), up, step)
    positions, angles = seen[6:8]
    if is_rotated:
        assert positions is step.positions
        assert angles is cos_sin
    else:
        assert positions.tolist() == [0, 0]
        assert angles.tolist() == [[1.0, 0.0]]

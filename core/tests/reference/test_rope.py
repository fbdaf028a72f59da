"""Rotary embeddings against ``transformers``: inverse frequencies of every kind, and the rotation itself."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, Qwen2VLTextConfig, Qwen3VLTextConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.deepseek_v2.modeling_deepseek_v2 import apply_rotary_emb
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLRotaryEmbedding
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRotaryEmbedding

from llmk.api import CheckpointError
from llmk.reference.rope.rotation import axes_of_pairs, cos_sin_cache, rope, rope_interleaved
from llmk.reference.rope.scaling import inverse_frequencies


def parameters(kind: str, draw: random.Random, head_dim: int) -> dict[str, Any]:
    """A random config of one kind, with optional keys there or not."""
    result: dict[str, Any] = {"rope_type": kind, "rope_theta": draw.choice([1e4, 5e5, 1e6])}
    if draw.random() < 0.5:
        result["partial_rotary_factor"] = draw.choice([0.25, 0.5, 0.75])
    original = draw.choice([256, 1000, 4096])
    factor = draw.choice([1.5, 2.0, 8.0, 40.0])
    if kind in ("linear", "dynamic") or (kind == "proportional" and draw.random() < 0.5):
        result["factor"] = factor
    if kind == "llama3":
        result |= {"factor": factor, "low_freq_factor": 1.0, "high_freq_factor": draw.choice([2.0, 4.0])}
        result["original_max_position_embeddings"] = original
    if kind == "yarn":
        result |= {"factor": factor, "original_max_position_embeddings": original}
        optional = {"beta_fast": 24, "beta_slow": 2, "truncate": False, "mscale": 0.7, "mscale_all_dim": 1.1}
        result |= {key: value for key, value in optional.items() if draw.random() < 0.5}
        if draw.random() < 0.3:
            result["attention_factor"] = 1.25
    if kind == "longrope":
        pairs = int(head_dim * result.get("partial_rotary_factor", 1.0)) // 2
        result["short_factor"] = [1 + draw.random() for _ in range(pairs)]
        result["long_factor"] = [2 + 10 * draw.random() for _ in range(pairs)]
        result["original_max_position_embeddings"] = original
        if draw.random() < 0.5:
            result["factor"] = factor
        if draw.random() < 0.3:
            result["attention_factor"] = 1.25
    return result


def config(rope_parameters: dict[str, Any], head_dim: int, trained: int) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=2 * head_dim,
        num_attention_heads=2,
        head_dim=head_dim,
        max_position_embeddings=trained,
        rope_parameters=dict(rope_parameters),
    )


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", sorted(ROPE_INIT_FUNCTIONS))
def test_frequencies_of_every_kind_that_transformers_knows(kind: str, seed: int) -> None:
    draw = random.Random(f"{kind}{seed}")
    head_dim, trained = draw.choice([32, 64, 96]), draw.choice([2048, 8192])
    given = parameters(kind, draw, head_dim)
    served = draw.choice([trained // 2, trained, 3 * trained])
    expected, expected_scaling = ROPE_INIT_FUNCTIONS[kind](config(given, head_dim, trained), None, seq_len=served)
    out, scaling = inverse_frequencies(given, head_dim, served, 123.0, trained_positions=trained)
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=0)
    assert scaling == pytest.approx(expected_scaling, rel=1e-12)


@pytest.mark.parametrize("kind", ["yarn", "longrope"])
def test_the_factor_follows_from_the_lengths_where_it_is_missing(kind: str) -> None:
    given = parameters(kind, random.Random(3), 64) | {"factor": None, "original_max_position_embeddings": 1024}
    expected, expected_scaling = ROPE_INIT_FUNCTIONS[kind](config(given, 64, 8192), None, seq_len=8192)
    out, scaling = inverse_frequencies(given, 64, 8192, 1e4, trained_positions=8192)
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=0)
    assert scaling == pytest.approx(expected_scaling)


def test_longrope_takes_its_long_factors_beyond_the_original_length() -> None:
    given = parameters("longrope", random.Random(0), 32)
    original = given["original_max_position_embeddings"]
    short, scaling = inverse_frequencies(given, 32, original, 1e4, trained_positions=8 * original)
    long, same = inverse_frequencies(given, 32, original + 1, 1e4, trained_positions=8 * original)
    expected = torch.tensor(given["long_factor"]) / torch.tensor(given["short_factor"])
    torch.testing.assert_close(short / long, expected)
    assert scaling == same


def test_dynamic_scales_for_what_is_served_and_not_below_what_was_trained() -> None:
    given = {"rope_type": "dynamic", "factor": 4.0}
    plain, _ = inverse_frequencies({}, 64, 512, 1e4)
    within, _ = inverse_frequencies(given, 64, 512, 1e4, trained_positions=2048)
    beyond, _ = inverse_frequencies(given, 64, 8192, 1e4, trained_positions=2048)
    assert torch.equal(within, plain)
    assert bool((beyond[1:] < plain[1:]).all())


def test_older_spelling_and_a_base_of_its_own() -> None:
    older, _ = inverse_frequencies({"type": "linear", "factor": 2.0}, 16, 64, 5e4)
    newer, _ = inverse_frequencies({"rope_type": "linear", "factor": 2.0, "rope_theta": 5e4}, 16, 64, 1e4)
    assert torch.equal(older, newer)


def test_an_unknown_kind_names_the_known_ones() -> None:
    with pytest.raises(CheckpointError, match=r"'spiral' is unknown; known are default, dynamic, linear, llama3"):
        inverse_frequencies({"rope_type": "spiral"}, 16, 64, 1e4)


def test_a_missing_parameter_is_named() -> None:
    with pytest.raises(CheckpointError, match="'llama3' lack 'high_freq_factor'"):
        inverse_frequencies({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}, 16, 64, 1e4)


@pytest.mark.parametrize("kind", ["default", "llama3", "yarn", "linear"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_rotation_agrees_with_transformers(kind: str, dtype: torch.dtype) -> None:
    given = parameters(kind, random.Random(2), 64)
    given.pop("partial_rotary_factor", None)
    torch.manual_seed(0)
    q, k = torch.randn(19, 6, 64).to(dtype), torch.randn(19, 2, 64).to(dtype)
    positions = torch.randint(0, 2048, (19,))
    cos, sin = LlamaRotaryEmbedding(config(given, 64, 2048))(q.float(), positions[None])
    heads_first = [x.float().transpose(0, 1)[None] for x in (q, k)]
    expected = [x[0].transpose(0, 1) for x in apply_rotary_pos_emb(*heads_first, cos, sin)]
    out = rope(q, k, positions, cos_sin_cache(given, 64, 2048, 1e4))
    bound = {torch.float32: 1e-6, torch.float16: 4e-4, torch.bfloat16: 3e-3}[dtype]
    for ours, theirs in zip(out, expected, strict=True):
        assert ours.dtype == dtype
        assert float((ours.float() - theirs).norm() / theirs.norm()) < bound


@pytest.mark.parametrize("kind", ["default", "yarn"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_interleaved_rotation_agrees_with_transformers(kind: str, dtype: torch.dtype) -> None:
    given = parameters(kind, random.Random(2), 64)
    given.pop("partial_rotary_factor", None)
    torch.manual_seed(0)
    q, k = torch.randn(19, 6, 64).to(dtype), torch.randn(19, 1, 64).to(dtype)
    positions = torch.randint(0, 2048, (19,))
    frequencies, scaling = inverse_frequencies(given, 64, 2048, 1e4)
    turns = torch.polar(torch.ones(19, 32), positions[:, None] * frequencies) * scaling
    heads_first = [x.float().transpose(0, 1)[None] for x in (q, k)]
    expected = [x[0].transpose(0, 1) for x in apply_rotary_emb(*heads_first, turns[None])]
    out = rope_interleaved(q, k, positions, cos_sin_cache(given, 64, 2048, 1e4))
    bound = {torch.float32: 1e-6, torch.float16: 4e-4, torch.bfloat16: 3e-3}[dtype]
    for ours, theirs in zip(out, expected, strict=True):
        assert ours.dtype == dtype
        assert float((ours.float() - theirs).norm() / theirs.norm()) < bound


def test_interleaving_only_orders_elements_differently() -> None:
    q, k = torch.randn(5, 3, 40), torch.randn(5, 2, 40)
    positions, table = torch.tensor([0, 7, 7, 99, 3]), cos_sin_cache({"partial_rotary_factor": 0.4}, 40, 100, 1e4)
    order = [*range(0, 16, 2), *range(1, 16, 2), *range(16, 40)]
    by_halves = rope(q[..., order], k[..., order], positions, table)
    for ours, other in zip(rope_interleaved(q, k, positions, table), by_halves, strict=True):
        assert torch.equal(ours[..., order], other)
    for ours, other in zip(rope(q, k, positions, table, neighbours=True), by_halves, strict=True):
        assert torch.equal(ours[..., order], other)


def test_partial_rotation_leaves_the_rest_of_each_head() -> None:
    q, k = torch.randn(5, 3, 40), torch.randn(5, 1, 40)
    positions = torch.tensor([0, 7, 7, 99, 3])
    table = cos_sin_cache({"partial_rotary_factor": 0.4}, 40, 100, 1e4)
    assert table.shape == (100, 16)
    out = rope(q, k, positions, table)
    for ours, given in zip(out, (q, k), strict=True):
        assert torch.equal(ours[..., 16:], given[..., 16:])
        pair = torch.complex(given[..., :8].double(), given[..., 8:16].double())
        angle = positions[:, None].double() / 1e4 ** (torch.arange(8).double() / 8)
        turned = pair * torch.polar(torch.ones_like(angle), angle)[:, None]
        torch.testing.assert_close(
            ours[..., :16].double(), torch.cat((turned.real, turned.imag), -1), rtol=0, atol=1e-5
        )


def test_scaling_of_attention_is_in_the_table() -> None:
    given = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "attention_factor": 1.5}
    table = cos_sin_cache(given, 16, 256, 1e4)
    cos, sin = table.chunk(2, dim=-1)
    torch.testing.assert_close(cos.square() + sin.square(), torch.full_like(cos, 2.25))
    assert table.dtype == torch.float32


@pytest.mark.parametrize("kind", ["default", "yarn", "dynamic", "longrope"])
def test_some_rows_are_those_of_the_whole_table(kind: str) -> None:
    """Bit by bit, with what depends on the longest text."""
    given = {"rope_type": kind, "factor": 4.0, "original_max_position_embeddings": 64}
    given |= {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    whole = cos_sin_cache(given, 16, 256, 1e4, trained_positions=128)
    for rows in (range(1), range(1, 30), range(30, 256)):
        found = cos_sin_cache(given, 16, 256, 1e4, trained_positions=128, rows=rows)
        assert torch.equal(found, whole[rows.start : rows.stop])


def test_inputs_are_left_alone_and_may_be_views() -> None:
    joined = torch.randn(4, 5 * 16)
    before = joined.clone()
    q, k, _ = (part.unflatten(1, (-1, 16)) for part in torch.split(joined, [48, 16, 16], dim=1))
    table = cos_sin_cache({}, 16, 8, 1e4)
    out = rope(q, k, torch.arange(4), table)
    expected = rope(q.contiguous(), k.contiguous(), torch.arange(4), table)
    assert torch.equal(joined, before)
    assert torch.equal(out[0], expected[0])
    assert torch.equal(out[1], expected[1])


@pytest.mark.parametrize("sections", [(4, 6, 6), (6, 5, 5), (16, 0, 0)])
@pytest.mark.parametrize("interleaved", [False, True])
def test_positions_of_several_axes(interleaved: bool, sections: tuple[int, ...]) -> None:
    """Time, height and width of Qwen2-VL, in consecutive sections, and of Qwen3-VL, interleaved."""
    kind = (
        (Qwen3VLTextConfig, Qwen3VLTextRotaryEmbedding) if interleaved else (Qwen2VLTextConfig, Qwen2VLRotaryEmbedding)
    )
    settings = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": list(sections)}
    theirs = kind[1](kind[0](hidden_size=64, num_attention_heads=2, head_dim=32, rope_parameters=settings))
    q, k, positions = torch.randn(9, 2, 32), torch.randn(9, 1, 32), torch.randint(0, 50, (9, 3))
    cos, sin = theirs(q, positions.T[:, None])
    expected = apply_rotary_pos_emb(q.transpose(0, 1)[None], k.transpose(0, 1)[None], cos, sin)
    table, axes = cos_sin_cache(settings, 32, 50, 1e4), axes_of_pairs(sections, interleaved=interleaved)
    for found, right in zip(rope(q, k, positions, table, axes=axes), expected, strict=True):
        torch.testing.assert_close(found, right[0].transpose(0, 1), rtol=1e-5, atol=1e-5)


def test_neighbours_with_positions_of_several_axes() -> None:
    """Each pair rotates as with the position of its own axis alone."""
    q, k, positions = torch.randn(5, 2, 20), torch.randn(5, 1, 20), torch.randint(0, 30, (5, 2))
    table, axes = cos_sin_cache({}, 16, 30, 1e4), axes_of_pairs((3, 5))
    assert axes.tolist() == [0, 0, 0, 1, 1, 1, 1, 1]
    found = rope_interleaved(q, k, positions, table, axes=axes)
    for i, part in enumerate(found):
        first, second = (rope_interleaved(q, k, positions[:, axis], table)[i] for axis in (0, 1))
        assert torch.equal(part, torch.cat((first[..., :6], second[..., 6:]), dim=-1))

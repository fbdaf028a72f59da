"""Mixtures of experts against the reference, at sizes that fill no tile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from llmk.reference import moe as reference_moe
from llmk.reference import quantize
from llmk.reference.moe import Experts, fused_moe_dequantized, prepare_moe_int4_group
from llmk.reference.moe import fused_moe as reference
from llmk.reference.quantize import quantize_int4_group
from llmk_triton.moe import fused as moe
from llmk_triton.moe import int4, library
from llmk_triton.moe.fused import FusedMoE, fused_moe
from llmk_triton.moe.tiles import Tile, Tiles

pytestmark = pytest.mark.slow

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 8e-3, torch.float16: 1e-3}
FEW = Tiles(0, Tile(8, 32, 4, 1), Tile(4, 32, 4, 2))
GROUPED = Tiles(16, Tile(16, 32, 4, 2), Tile(32, 16, 4, 2))


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """Fresh memory contains NaN, so that elements that were not written are detected."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def random(seed: int, dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def experts(count: int, hidden: int, inner: int, dtype: torch.dtype) -> dict[str, Tensor]:
    gate_up, down = random(1, dtype, count, 2 * inner, hidden), random(2, dtype, count, hidden, inner)
    return {"gate_up": gate_up / hidden**0.5, "down": down / inner**0.5}


def plain_experts(count: int, hidden: int, inner: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Without gates."""
    weights = experts(count, hidden, inner, dtype)
    return {**weights, "gate_up": weights["gate_up"][:, :inner].contiguous()}


def distinct(tokens: int, count: int, dtype: torch.dtype) -> Tensor:
    """Logits without ties, because the order of equal scores is undefined."""
    rows = [torch.randperm(count, generator=torch.Generator().manual_seed(seed)) for seed in range(tokens)]
    return (torch.stack(rows) / 4 - 2).to(dtype)


def same(actual: Tensor, expected: Tensor) -> None:
    assert actual.dtype == expected.dtype
    tolerance = TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def mixture(x: Tensor, logits: Tensor, weights: Mapping[str, Tensor], top_k: int) -> FusedMoE:
    return FusedMoE(x, logits, weights, top_k, True)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("tokens", "count", "top_k"), [(1, 12, 3), (3, 6, 1), (9, 12, 3), (70, 5, 2)], ids=str)
def test_as_the_reference(tokens: int, count: int, top_k: int, dtype: torch.dtype) -> None:
    """Experts with no token, with all tokens, and with more than a block of rows."""
    x, logits, weights = random(0, dtype, tokens, 72), distinct(tokens, count, dtype), experts(count, 72, 40, dtype)
    logits[:, 1] = 9.0
    actual = fused_moe(x, logits, weights, top_k=top_k, renormalize=True)
    same(actual, reference(x, logits, weights, top_k=top_k, renormalize=True))


@pytest.mark.parametrize(("tokens", "group", "zero"), [(1, 32, True), (9, 64, False), (70, 128, True)])
def test_4_bit_weights(tokens: int, group: int, zero: bool) -> None:
    """By the dequantized weights, which are rounded to the dtype there, and not here."""
    hidden, inner, dtype = 256, 128, torch.bfloat16
    x, logits, parts = random(0, dtype, tokens, hidden), distinct(tokens, 5, dtype), dict[str, Tensor]()
    logits[:, 1] = 9.0
    for name, weight in experts(5, hidden, inner, torch.float32).items():
        each = [quantize_int4_group(expert, group, symmetric=not zero) for expert in weight]
        parts |= {name + key.removeprefix("weight"): torch.stack([one[key] for one in each]) for key in each[0]}
    options: dict[str, Any] = {"top_k": 2, "renormalize": True}
    found = int4.fused_moe(x, logits, int4.prepare(parts), **options)
    exact = fused_moe_dequantized(x.float(), logits.float(), prepare_moe_int4_group(parts), **options)
    assert found.dtype == dtype
    assert (found.float() - exact).norm() < 8e-3 * exact.norm()
    assert int4.fused_moe(x[:0], logits[:0], int4.prepare(parts), **options).shape == (0, hidden)


@pytest.mark.parametrize("scales", ["channel", "block"])
@pytest.mark.parametrize("tokens", [1, 9, 70])
def test_fp8_weights(tokens: int, scales: str) -> None:
    """By float32, in which the reference's dequantized weight is not rounded; sizes are no whole blocks."""
    hidden, inner = 200, 136
    x, logits, parts = random(0, torch.float32, tokens, hidden), distinct(tokens, 5, torch.float32), dict[str, Tensor]()
    logits[:, 1] = 9.0
    for name, weight in experts(5, hidden, inner, torch.float32).items():
        spread = torch.linspace(0.2, 5, weight.shape[1])[:, None] * torch.linspace(3, 0.3, weight.shape[2])
        each = [getattr(quantize, f"quantize_fp8_{scales}")(expert * spread) for expert in weight]
        parts |= {name + key.removeprefix("weight"): torch.stack([one[key] for one in each]) for key in each[0]}
    options: dict[str, Any] = {"top_k": 2, "renormalize": True}
    found = fused_moe(x, logits, moe.prepare_fp8(parts), **options)
    exact = fused_moe_dequantized(x, logits, getattr(reference_moe, f"prepare_moe_fp8_{scales}")(parts), **options)
    assert (found - exact).norm() < 1e-5 * exact.norm()


@pytest.mark.parametrize(
    ("hidden", "inner", "group", "ordered", "fraction"),
    [(72, 40, 8, False, 0.0), (64, 128, 32, True, 0.0), (64, 128, 32, False, 0.25)],
    ids=["small groups", "ordered inputs", "zero points that are no whole numbers"],
)
def test_4_bit_weights_that_tiles_do_not_hold_are_widened(
    hidden: int, inner: int, group: int, ordered: bool, fraction: float
) -> None:
    dtype = torch.bfloat16
    x, logits, parts = random(0, dtype, 9, hidden), distinct(9, 5, dtype), dict[str, Tensor]()
    for name, weight in experts(5, hidden, inner, torch.float32).items():
        each = [quantize_int4_group(expert, group, symmetric=False) for expert in weight]
        parts |= {name + key.removeprefix("weight"): torch.stack([one[key] for one in each]) for key in each[0]}
        parts[f"{name}_zero_point"] = parts[f"{name}_zero_point"].float() + fraction
        if ordered:
            parts[f"{name}_order"] = torch.stack([torch.randperm(weight.shape[2]) for _ in weight])
    prepared = int4.prepare(parts)
    assert isinstance(prepared, Experts)
    found = int4.fused_moe(x, logits, prepared, top_k=2, renormalize=True)
    exact = fused_moe_dequantized(x.float(), logits.float(), prepare_moe_int4_group(parts), top_k=2, renormalize=True)
    assert (found.float() - exact).norm() < 1e-2 * exact.norm()


@pytest.mark.parametrize(("tokens", "tiles"), [(1, FEW), (3, FEW), (1, GROUPED), (19, GROUPED)])
def test_few_tokens_and_grouped(tokens: int, tiles: Tiles) -> None:
    """Tiles that divide no size, and tiles that divide all of them."""
    for hidden, inner in ((72, 40), (64, 96)):
        x, logits = random(0, torch.bfloat16, tokens, hidden), distinct(tokens, 7, torch.bfloat16)
        weights = experts(7, hidden, inner, torch.bfloat16)
        expected = reference(x, logits, weights, top_k=2, renormalize=True)
        same(mixture(x, logits, weights, 2).run(tiles), expected)


@pytest.mark.parametrize(("tokens", "at_once"), [(1, 8192), (20, 8192), (20, 0)])
@pytest.mark.parametrize(
    "options",
    [
        {"renormalize": False},
        {"renormalize": False, "scoring": "sigmoid", "activation": "gelu"},
        {"renormalize": True, "scoring": "sigmoid", "scaling": 2.5, "activation": "gelu_tanh"},
        {"renormalize": True, "selection_bias": torch.linspace(0.5, -0.5, 10)},
        {"renormalize": False, "scoring": "sigmoid", "selection_bias": torch.linspace(-0.5, 0.5, 10)},
    ],
    ids=lambda options: " ".join(options),
)
def test_routing_options(options: dict[str, Any], tokens: int, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moe, "_ROUTED_AT_ONCE", at_once)
    x, logits = random(0, torch.float32, tokens, 32), distinct(tokens, 10, torch.float32)
    weights = experts(10, 32, 16, torch.float32)
    same(fused_moe(x, logits, weights, top_k=3, **options), reference(x, logits, weights, top_k=3, **options))


@pytest.mark.parametrize(("tokens", "tiles"), [(2, FEW), (19, GROUPED)], ids=["few", "grouped"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"activation_limit": 0.5},
        {"activation_alpha": 1.702, "activation_limit": 0.7, "up_offset": 1.0},
        {"activation_alpha": 1.5},
    ],
    ids=lambda options: " ".join(options) or "biases alone",
)
def test_experts_with_biases_and_parameters(
    options: dict[str, Any], dtype: torch.dtype, tokens: int, tiles: Tiles
) -> None:
    """As GPT-OSS has them."""
    x, logits, weights = random(0, dtype, tokens, 72), distinct(tokens, 7, dtype), experts(7, 72, 40, dtype)
    weights |= {"gate_up_bias": random(3, dtype, 7, 80), "down_bias": random(4, dtype, 7, 72)}
    expected = reference(x, logits, weights, top_k=2, renormalize=True, **options)
    actual = FusedMoE(x, logits, weights, 2, True, gated_options=options).run(tiles)
    tolerance = 2 * TOLERANCE[dtype]
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("tokens", "tiles"), [(2, FEW), (19, GROUPED)], ids=["few", "grouped"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("sizes", [(72, 40), (64, 96)], ids=str)
@pytest.mark.parametrize(("activation", "bias"), [("relu2", False), ("gelu", True)])
def test_experts_without_gates(
    activation: str, sizes: tuple[int, int], dtype: torch.dtype, tokens: int, tiles: Tiles, *, bias: bool
) -> None:
    """As Nemotron 3 has them; tiles that divide no size, and tiles that divide all of them."""
    hidden, inner = sizes
    x, logits, weights = random(0, dtype, tokens, hidden), distinct(tokens, 7, dtype), plain_experts(7, *sizes, dtype)
    if bias:
        weights |= {"gate_up_bias": random(3, dtype, 7, inner), "down_bias": random(4, dtype, 7, hidden)}
    expected = reference(x, logits, weights, top_k=2, renormalize=True, activation=activation, gated=False)
    actual = FusedMoE(x, logits, weights, 2, True, activation, gated=False).run(tiles)
    tolerance = 2 * TOLERANCE[dtype]
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("stored", ["fp8_channel", "fp8_block", "int4_group"])
@pytest.mark.parametrize("tokens", [1, 70])
def test_quantized_experts_without_gates(tokens: int, stored: str) -> None:
    """By float32, in which the reference's dequantized weight is not rounded; an odd number of blocks of 128."""
    hidden, inner, dtype = 256, 384, torch.bfloat16 if stored == "int4_group" else torch.float32
    x, logits, parts = random(0, dtype, tokens, hidden), distinct(tokens, 5, dtype), dict[str, Tensor]()
    for name, weight in plain_experts(5, hidden, inner, torch.float32).items():
        each = [getattr(quantize, f"quantize_{stored}")(one, *((128,) if "int4" in stored else ())) for one in weight]
        parts |= {name + key.removeprefix("weight"): torch.stack([one[key] for one in each]) for key in each[0]}
    kernel = int4 if stored == "int4_group" else moe
    prepare: Any = int4.prepare if stored == "int4_group" else moe.prepare_fp8
    options: dict[str, Any] = {"top_k": 2, "renormalize": True, "activation": "relu2", "gated": False}
    found = kernel.fused_moe(x, logits, prepare(parts), **options)
    weights = getattr(reference_moe, f"prepare_moe_{stored}")(parts)
    exact = fused_moe_dequantized(x.float(), logits.float(), weights, **options)
    assert (found.float() - exact).norm() < TOLERANCE[dtype] * exact.norm()


@pytest.mark.parametrize(("tokens", "at_once"), [(1, 8192), (20, 8192), (20, 0)])
@pytest.mark.parametrize(
    "options",
    [
        {"num_groups": 4, "top_groups": 2, "renormalize": False, "scaling": 16.0},
        {"num_groups": 3, "top_groups": 1, "renormalize": True},
        {
            "num_groups": 4,
            "top_groups": 2,
            "group_scoring": "top2_sum",
            "renormalize": True,
            "scaling": 2.5,
            "scoring": "sigmoid",
            "selection_bias": torch.linspace(0.3, -0.3, 12).roll(5),
        },
    ],
    ids=["by the best", "of one", "by the two best"],
)
def test_experts_of_the_best_groups(
    options: dict[str, Any], tokens: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moe, "_ROUTED_AT_ONCE", at_once)
    x, logits = random(0, torch.float32, tokens, 32), distinct(tokens, 12, torch.float32)
    weights = experts(12, 32, 16, torch.float32)
    among_all = {**options, "top_groups": options["num_groups"]}
    expected = reference(x, logits, weights, top_k=3, **options)
    assert not torch.equal(expected, reference(x, logits, weights, top_k=3, **among_all)), "groups change nothing here"
    same(fused_moe(x, logits, weights, top_k=3, **options), expected)


@pytest.mark.parametrize("tiles", [FEW, GROUPED], ids=["few", "grouped"])
def test_of_equal_scores_the_lowest_number_is_taken(tiles: Tiles) -> None:
    x, weights = random(0, torch.float32, 2, 32), experts(6, 32, 16, torch.float32)
    logits = torch.tensor([[0.0, 1.0, 1.0, 1.0, 0.0, 1.0], [2.0] * 6])
    first = torch.tensor([[0.0, 1.0, 1.0, 0.0, 0.0, 0.0], [2.0, 2.0, 0.0, 0.0, 0.0, 0.0]])
    expected = reference(x, first, weights, top_k=2, renormalize=True)
    same(mixture(x, logits, weights, 2).run(tiles), expected)


@pytest.mark.parametrize("tiles", [FEW, GROUPED], ids=["few", "grouped"])
def test_nan_rows_do_not_affect_others(tiles: Tiles) -> None:
    """What padding holds may be anything, in the router's logits too."""
    x, logits, weights = (
        random(0, torch.float32, 4, 32),
        distinct(4, 6, torch.float32),
        experts(6, 32, 16, torch.float32),
    )
    x[2], logits[2] = float("inf"), float("nan")
    logits[3] = float("-inf")
    with pytest.warns(RuntimeWarning, match="invalid value"):
        actual = mixture(x, logits, weights, 2).run(tiles)
    same(actual[:2], reference(x[:2], logits[:2], weights, top_k=2, renormalize=True))


@pytest.mark.parametrize("at_once", [8192, 0])
def test_every_expert_gets_its_rows_in_order(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moe, "_ROUTED_AT_ONCE", at_once)
    x, logits = random(0, torch.float32, 37, 32), distinct(37, 5, torch.float32)
    rows = mixture(x, logits, experts(5, 32, 16, torch.float32), 2).route()
    chosen = logits.topk(2).indices
    for expert, count in enumerate(rows.counts.tolist()):
        pairs = (chosen.flatten() == expert).nonzero().flatten()
        assert rows.order[expert, :count].tolist() == pairs.tolist()


def test_results_do_not_depend_on_the_order_of_programs() -> None:
    x, logits, weights = (
        random(0, torch.float32, 20, 32),
        distinct(20, 4, torch.float32),
        experts(4, 32, 16, torch.float32),
    )
    once, again = (fused_moe(x, logits, weights, top_k=2, renormalize=True) for _ in range(2))
    assert torch.equal(once, again)


def test_strided_rows_and_no_rows() -> None:
    x, logits, weights = (
        random(0, torch.float32, 6, 32)[::2],
        distinct(3, 4, torch.float32),
        experts(4, 32, 16, torch.float32),
    )
    expected = reference(x, logits, weights, top_k=2, renormalize=True)
    same(fused_moe(x, logits, weights, top_k=2, renormalize=True), expected)
    assert fused_moe(x[:0], logits[:0], weights, top_k=2, renormalize=True).shape == (0, 32)


def test_tiles_are_what_a_tuned_configuration_says() -> None:
    assert Tiles.of(GROUPED.config()) == GROUPED
    assert Tiles.of({**FEW.config(), "rows": 32}).rows == 32


@pytest.mark.parametrize("gates", [True, False], ids=["gates", "no gates"])
@pytest.mark.parametrize(("tokens", "count", "top_k", "hidden"), [(1, 6, 3, 16), (67, 5, 2, 72), (33, 40, 8, 1032)])
def test_by_the_library(tokens: int, count: int, top_k: int, hidden: int, gates: bool) -> None:
    """Experts without tokens, with all, and with more rows than a program copies; columns beyond a program's."""
    dtype = torch.bfloat16
    x, logits = random(0, dtype, tokens, hidden), distinct(tokens, count, dtype)
    weights = experts(count, hidden, 40, dtype) if gates else plain_experts(count, hidden, 40, dtype)
    logits[:, 1] = 9.0
    more = {} if gates else {"gated": False, "activation": "relu2"}
    options: dict[str, Any] = {"top_k": top_k, "renormalize": True, "scaling": 2.5, **more}
    same(library.fused_moe(x, logits, weights, **options), reference(x, logits, weights, **options))


def test_parameters_of_the_activation_by_the_library() -> None:
    x, logits = random(0, torch.bfloat16, 40, 64), distinct(40, 8, torch.bfloat16)
    weights = experts(8, 64, 48, torch.bfloat16)
    own = {"activation_alpha": 1.7, "activation_limit": 0.9, "up_offset": 1.0}
    options: dict[str, Any] = {"top_k": 2, "renormalize": False, "scoring": "sigmoid", **own}
    same(library.fused_moe(x, logits, weights, **options), reference(x, logits, weights, **options))

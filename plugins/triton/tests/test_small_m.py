"""Small-M GEMMs against the reference, with every configuration, at sizes that don't fill tiles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget

from llmk.reference import activations, norm_linear, norms, quantize, quantized_weight
from llmk.reference.linear import linear
from llmk_triton.common import tuned
from llmk_triton.common.targets import current_target
from llmk_triton.gemm import small_m, split_k
from llmk_triton.gemm.problem import GemmProblem, Operands
from llmk_triton.gemm.small_m import Gemv, Skinny

PARTS: dict[str, Any] = {"rms_norm": norms.rms_norm, "linear": linear, "silu_and_mul": activations.silu_and_mul}
PARTS["add_rms_norm"] = norms.make_add_rms_norm(PARTS)
PARTS["gate_up_silu"] = activations.make_gate_up_silu(PARTS)
REFERENCE = {
    "linear": linear,
    "gate_up_silu": PARTS["gate_up_silu"],
    "add_rms_norm_linear": norm_linear.make_add_rms_norm_linear(PARTS),
    "add_rms_norm_gate_up_silu": norm_linear.make_add_rms_norm_gate_up_silu(PARTS),
}
CONFIGS = {
    "rows per warp": (Gemv(4, 4, 1), 3),
    "together": (Gemv(4, 2, 0), 1),
    "skinny": (Skinny(16, 64, 1, 0, 4, 2), 18),
    "split": (Skinny(16, 64, 3, 0, 4, 2), 5),
    "split, transposed": (Skinny(32, 128, 2, 1, 4, 2), 5),
    "tma": (Skinny(16, 64, 1, 0, 4, 2, tma=1), 18),
    "tma, split, transposed": (Skinny(32, 128, 2, 1, 4, 2, tma=1), 18),
}
H200 = GPUTarget("cuda", 90, 32)
EPS = 1e-6


def random(dtype: torch.dtype, *shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def operands(kernel: str, dtype: torch.dtype, rows: int, size: int, out: int, **changes: Any) -> Operands:
    out *= 1 + kernel.endswith("gate_up_silu")
    weight, bias = random(dtype, out, size, seed=1) / 8, random(dtype, out, seed=2)
    norm = {"residual": random(dtype, rows, size, seed=3), "norm_weight": random(dtype, size, seed=4), "eps": EPS}
    return Operands(random(dtype, rows, size), weight, bias, **{**(norm if "norm" in kernel else {}), **changes})


def expected(kernel: str, o: Operands) -> tuple[Tensor, Tensor]:
    if "norm" not in kernel:
        return REFERENCE[kernel](o.x, o.weight, o.bias), o.x
    factor = {} if o.factor == 1.0 else {"residual_multiplier": o.factor}
    return REFERENCE[kernel](o.x, o.residual, o.norm_weight, o.eps, o.weight, o.bias, **factor)


def able(*kernels: str) -> list[tuple[str, str]]:
    """What can be launched how: a norm is computed on what threads fetch."""
    return [(kernel, name) for kernel in kernels for name in CONFIGS if not ("norm" in kernel and "tma" in name)]


def close(actual: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor]) -> None:
    """GEMMs may differ where another order of summation rounds differently; residual sums don't."""
    assert torch.equal(actual[1], wanted[1])
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}[wanted[0].dtype]
    torch.testing.assert_close(actual[0], wanted[0], rtol=tolerance, atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "config"), able(*REFERENCE))
def test_every_op_with_every_configuration(kernel: str, config: str) -> None:
    how, rows = CONFIGS[config]
    size, out = 312, 21
    given = operands(kernel, torch.bfloat16, rows, size, out)
    before = given.x.clone()
    found = small_m.launch(GemmProblem(kernel, torch.bfloat16, rows, size, out), how, given)
    close(found, expected(kernel, given))
    assert torch.equal(given.x, before)
    assert not split_k.counters(given.x.device).any(), "counters are left as they were found"


@pytest.mark.parametrize("config", ["split", next(iter(CONFIGS))])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_sums_with_a_factor(dtype: torch.dtype, config: str) -> None:
    how, rows = CONFIGS[config]
    given = operands("add_rms_norm_linear", dtype, rows, 72, 21, factor=0.22)
    problem = GemmProblem("add_rms_norm_linear", dtype, rows, 72, 21)
    close(small_m.launch(problem, how, given), expected("add_rms_norm_linear", given))


@pytest.mark.parametrize("config", [name for name in CONFIGS if "tma" not in name])
@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh", "relu2"])
def test_an_activation_before_the_layer(kind: str, config: str) -> None:
    """As the op ``activate_linear`` has it, rounded where its parts round."""
    chosen, rows = CONFIGS[config]
    for dtype in (torch.float32, torch.bfloat16):
        o = operands("linear", dtype, rows, 200, 21, activation=kind)
        problem = GemmProblem("linear", dtype, rows, 200, 21)
        found, _ = small_m.launch(problem, chosen, o)
        right = linear(activations.activate(o.x, kind), o.weight, o.bias)
        assert (found.float() - right.float()).norm() / right.float().norm() < (
            1e-5 if dtype is torch.float32 else 5e-3
        )


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "config"), able("linear", "add_rms_norm_gate_up_silu", "gate_up_silu"))
@pytest.mark.parametrize("scales", ["channel", "block"])
def test_fp8_weights(scales: str, config: str, kernel: str) -> None:
    """By float32, in which the reference's dequantized weight is not rounded."""
    how, rows = CONFIGS[config]
    size, out = 304, 138 if kernel == "linear" else 69
    given = operands(kernel, torch.float32, rows, size, out)
    spread = torch.linspace(0.2, 5, given.weight.shape[0])[:, None] * torch.linspace(3, 0.3, size)
    stored = getattr(quantize, f"quantize_fp8_{scales}")(given.weight * spread)
    weight = getattr(quantized_weight, f"prepare_fp8_{scales}")(stored)
    exact = replace(given, weight=weight.dequantize(torch.float32))
    problem = GemmProblem(kernel, torch.float32, rows, size, out, weight.block[0])
    found, wanted = small_m.launch(problem, how, replace(given, weight=weight)), expected(kernel, exact)
    assert torch.equal(found[1], wanted[1])
    assert (found[0] - wanted[0]).norm() < 1e-5 * wanted[0].norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(("rows", "size", "out"), [(2, 100, 7), (9, 72, 40)])
def test_chosen_configurations(rows: int, size: int, out: int, dtype: torch.dtype) -> None:
    for kernel in ("gate_up_silu", "add_rms_norm_linear"):
        given = operands(kernel, dtype, rows, size, out)
        close(small_m.run(kernel, given), expected(kernel, given))


def test_without_residual_the_sum_is_x_itself() -> None:
    for kernel, rows in (("add_rms_norm_gate_up_silu", 1), ("add_rms_norm_linear", 6)):
        given = operands(kernel, torch.bfloat16, rows, 64, 10, residual=None)
        found = small_m.run(kernel, given)
        close(found, expected(kernel, given))
        assert found[1] is given.x


@pytest.mark.parametrize("config", [Gemv(4, 4, 1), Gemv(2, 4, 0)], ids=["rows per warp", "rows per program"])
@pytest.mark.parametrize("residual", [True, False])
def test_a_router_returns_the_normed_input(residual: bool, config: Gemv) -> None:
    size, out, dtype = 312, 21, torch.bfloat16
    kept = torch.full((1, size), float("nan"), dtype=dtype)
    given = operands(
        "add_rms_norm_router", dtype, 1, size, out, normed_out=kept, **({} if residual else {"residual": None})
    )
    found = small_m.launch(GemmProblem("add_rms_norm_router", dtype, 1, size, out), config, given)
    make = norm_linear.make_add_rms_norm_router(PARTS)
    logits, between, total = make(given.x, given.residual, given.norm_weight, EPS, given.weight, given.bias)
    close(found, (logits, total))
    torch.testing.assert_close(kept, between, rtol=1.6e-2, atol=1.6e-2)


def test_the_functions_that_specs_name() -> None:
    plain, normed = (
        operands("gate_up_silu", torch.float32, 1, 64, 8),
        operands("add_rms_norm_linear", torch.float32, 1, 64, 16),
    )
    weight, bias = plain.weight, plain.bias
    rest = (normed.residual, normed.norm_weight, EPS, weight, bias)
    torch.testing.assert_close(small_m.linear(plain.x, weight, bias), linear(plain.x, weight, bias))
    assert small_m.gate_up_silu(plain.x, weight, None).shape == (1, 8)
    assert small_m.add_rms_norm_linear(plain.x, *rest)[0].shape == (1, 16)
    assert small_m.add_rms_norm_gate_up_silu(plain.x, *rest)[0].shape == (1, 8)
    assert [tuple(each.shape) for each in small_m.add_rms_norm_router(plain.x, *rest)] == [(1, 16), (1, 64), (1, 64)]
    assert small_m.linear(plain.x[:0], weight, bias).shape == (0, 16)


def test_rows_of_a_view_are_multiplied() -> None:
    x, weight = random(torch.float32, 3, 2, 64)[:, 1], random(torch.float32, 10, 64)
    torch.testing.assert_close(small_m.linear(x, weight, None), linear(x, weight, None))


@pytest.mark.parametrize("rows", [1, 2, 4, 5, 64, 128, 300])
@pytest.mark.parametrize("shape", [(4096, 1024), (1024, 3072), (4096, 12288), (151936, 4096), (128, 2048)], ids=str)
@pytest.mark.parametrize("target", [H200, GPUTarget("cuda", 80, 32), GPUTarget("hip", "gfx942", 64)], ids=str)
def test_a_chosen_configuration_fits(target: GPUTarget, shape: tuple[int, int], rows: int) -> None:
    """By rule, as nothing was tuned for this dtype."""
    problem = GemmProblem("linear", torch.float16, rows, shape[1], shape[0])
    config = small_m.choose(problem, target, num_sms=132)
    if isinstance(config, Gemv):
        assert rows <= 4
        assert config.per_warp == (config.rows == config.warps)
        assert shape[1] * config.rows * 2 <= 256 * target.warp_size * config.warps
    else:
        assert rows > 1
        assert 1 <= config.splits <= 8
        assert config.splits == 1 or -(-shape[0] // config.block_n) * config.splits <= 2 * 132


@pytest.mark.parametrize("rows", [17, 64])
def test_small_n_uses_many_programs(rows: int) -> None:
    for size, out in ((4096, 8), (2048, 60), (2048, 256)):
        config = small_m.choose(GemmProblem("linear", torch.bfloat16, rows, size, out), H200, num_sms=132)
        assert isinstance(config, Skinny)
        assert not config.tma
        assert config.block_n == 16
        assert config.splits == 8


@pytest.mark.parametrize(("rows", "size", "out"), [(17, 600, 21), (40, 2048, 8), (33, 2100, 40)])
def test_small_n_results_are_right(rows: int, size: int, out: int) -> None:
    given = operands("linear", torch.bfloat16, rows, size, out)
    assert small_m.choose(GemmProblem("linear", torch.bfloat16, rows, size, out), current_target(), 64).block_n == 16
    close(small_m.run("linear", given), expected("linear", given))


@pytest.mark.parametrize("rows", [17, 32, 64, 128])
def test_hopper_uses_tma_for_more_rows(rows: int) -> None:
    def chosen(kernel: str = "linear", size: int = 4096, dtype: torch.dtype = torch.bfloat16, arch: int = 90) -> Any:
        problem = GemmProblem(kernel, dtype, rows, size, 6144)
        return small_m.choose(problem, GPUTarget("cuda", arch, 32), num_sms=132)

    assert chosen().tma
    assert chosen().late_release
    assert not chosen(size=1024).late_release
    assert chosen("gate_up_silu").tma
    assert 2 * chosen().block_k * chosen().stages * (128 + rows) * 2 <= 227 << 10, "two programs fit"
    others = (chosen("add_rms_norm_linear"), chosen(size=4100), chosen(dtype=torch.float32), chosen(arch=80))
    assert not any(config.tma for config in others)


def test_a_tuned_configuration_serves_rows_up_to_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {
        "1": {"rows": 2, "warps": 4, "per_warp": 0},
        "16": {"block_n": 64, "block_k": 64, "splits": 2, "swap": 1},
    }
    entries["16"] |= {"swap": 1, "warps": 4, "stages": 3}
    tables = {("linear", "sm_90"): {"bfloat16": {"96x64": entries}}}
    monkeypatch.setattr(tuned, "table", lambda kernel, arch: tables.get((kernel, arch), {}))

    def chosen(rows: int, size: int = 64, target: GPUTarget = H200) -> Any:
        return small_m.choose(GemmProblem("linear", torch.bfloat16, rows, size, 96), target, num_sms=132)

    assert chosen(1) == Gemv(2, 4, 0)
    assert chosen(2) == chosen(16) == Skinny(64, 64, 2, 1, 4, 3)
    by_rule = (chosen(17), chosen(1, size=128), chosen(1, target=GPUTarget("cuda", 80, 32)))
    assert all(config not in (Gemv(2, 4, 0), Skinny(64, 64, 2, 1, 4, 3)) for config in by_rule)


@pytest.mark.parametrize("kernel", ["linear", "gate_up_silu"])
def test_any_number_of_rows_launches_what_powers_of_two_do(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only these are compiled ahead."""
    monkeypatch.setattr(small_m, "num_multiprocessors", lambda device: 132)
    device = torch.device("cpu", 1)
    for rows in range(1, 65):
        chosen, ahead = (
            small_m._chosen(GemmProblem(kernel, torch.bfloat16, count, 4096, 49159), H200, device)
            for count in (rows, triton.next_power_of_2(rows))
        )
        assert chosen == ahead

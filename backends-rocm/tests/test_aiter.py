"""AITER's functions are called as its repository declares them, and what is made of them is right, with functions of
the same signatures in plain torch in their place."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import llmk_rocm.aiter_linear as adapters
from llmk.reference.quantize import quantize_fp8_block
from llmk.reference.quantized_weight import ScaledWeight, prepare_fp8_block

COMMIT = "0006ebde8a078bb8bef51dd28db28dc2822f9c62"
SIGNATURES = {
    "gemm_a8w8_blockscale": (
        "aiter/ops/gemm_op_a8w8.py",
        "(XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, dtype: torch.dtype = dtypes.bf16,"
        " isBpreshuffled: bool = False) -> torch.Tensor",
    )
}
"""Of ROCm/aiter at :data:`COMMIT`: function, file, signature."""


def calls() -> list[tuple[str, ast.Call]]:
    """The calls of functions that the adapters import from AITER."""
    tree = ast.parse(Path(adapters.__file__).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "aiter"]
    names = {alias.name for node in imports for alias in node.names}
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    return [(node.func.id, node) for node in found if isinstance(node.func, ast.Name) and node.func.id in names]


def declared(name: str) -> list[str]:
    function = ast.parse(f"def f{SIGNATURES[name][1]}: ...").body[0]
    assert isinstance(function, ast.FunctionDef)
    return [argument.arg for argument in function.args.args]


def test_every_call_is_by_keyword_as_declared() -> None:
    assert {name for name, _ in calls()} == set(SIGNATURES)
    for name, call in calls():
        assert not call.args, f"{name} is called by position"
        assert {keyword.arg for keyword in call.keywords} == set(declared(name))
    assert COMMIT[:8] in str(adapters.__doc__)


@pytest.fixture
def aiter(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Any], None]:
    """Puts a function in the place of AITER's."""
    module = ModuleType("aiter")
    monkeypatch.setitem(sys.modules, "aiter", module)

    def put(name: str, function: Any) -> None:
        assert list(inspect.signature(function).parameters) == declared(name)
        setattr(module, name, function)

    return put


@pytest.mark.parametrize("fnuz", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_block_gemm(aiter: Callable[[str, Any], None], fnuz: bool, bias: bool) -> None:
    def gemm(
        XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, dtype: torch.dtype, isBpreshuffled: bool
    ) -> Tensor:
        assert XQ.dtype == WQ.dtype == (torch.float8_e4m3fnuz if fnuz else torch.float8_e4m3fn)
        assert (x_scale.shape, x_scale.is_contiguous()) == ((XQ.shape[0], XQ.shape[1] // 128), True)
        assert not isBpreshuffled
        x = XQ.double() * x_scale.double().repeat_interleave(128, 1)
        return (x @ ScaledWeight(WQ, w_scale, (128, 128)).dequantize(torch.float64).t()).to(dtype)

    aiter("gemm_a8w8_blockscale", gemm)
    torch.manual_seed(5)
    weight = torch.randn(208, 256, dtype=torch.bfloat16)
    offset = torch.randn(208, dtype=torch.bfloat16) if bias else None
    stored = quantize_fp8_block(weight)
    prepared = (adapters.prepare_block_fnuz if fnuz else prepare_fp8_block)(stored)
    for rows in (1, 5):
        x = torch.randn(rows, 256, dtype=torch.bfloat16) * torch.tensor([1.0, 100.0]).repeat_interleave(128)
        exact = x.double() @ prepare_fp8_block(stored).dequantize(torch.float64).t()
        found = adapters.linear_block(x.bfloat16(), prepared, offset).double() - (
            0 if offset is None else offset.double()
        )
        assert (found - exact).norm() < 0.04 * exact.norm()

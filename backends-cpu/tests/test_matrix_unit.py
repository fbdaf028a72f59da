"""GEMMs on AMX's tiles, which are emulated in plain C++, so that their order is checked on processors without them. The
instructions themselves are checked by the tests of all levels where the processor has them."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
import torch
from levels import LIBRARY

from llmk.reference.quantize import quantize_int4_group, quantize_int8_group
from llmk_cpu.native import linear, quantized
from llmk_cpu.native.library import Kernel
from llmk_testing.tolerance import Right, check

NATIVE = Path(__file__).resolve().parents[1] / "native"
_FLAGS = [
    "-std=c++17",
    "-O2",
    "-shared",
    "-fPIC",
    "-pthread",
    "-fno-math-errno",
    "-Wno-psabi",
    "-mavx2",
    "-mfma",
    "-mf16c",
    "-mbmi2",
    "-mavx512f",
    "-mavx512bw",
    "-mavx512dq",
    "-mavx512vl",
    "-mavx512vnni",
    "-mavx512bf16",
    "-DLLMK_EMULATED_TILES",
    "-DLLMK_LEVEL=amx",
]
_KERNELS = {
    "linear_many": linear,
    "linear_tiles_many": quantized,
    "linear_int4_many": quantized,
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("avx512_bf16" not in LIBRARY.levels, reason="the processor has no AVX512-BF16"),
    pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler"),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    out = tmp_path_factory.mktemp("tiles") / "tiles.so"
    sources = [NATIVE / f"{name}.cpp" for name in ("linear_many", "linear_tiles_many", "matrix_check", "pool")]
    subprocess.run(["c++", *_FLAGS, f"-I{NATIVE}", *map(str, sources), "-o", str(out)], check=True, timeout=300)
    return ctypes.CDLL(str(out))


@pytest.fixture(autouse=True)
def _emulated(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels for many rows are those with emulated tiles."""
    for name, module in _KERNELS.items():
        _replace(module, name, library, monkeypatch)


def _replace(module: ModuleType, name: str, library: ctypes.CDLL, patch: pytest.MonkeyPatch) -> None:
    own: Kernel = getattr(module, f"_{name}")
    function = getattr(library, f"llmk_amx_{name}")
    types = {"p": ctypes.c_void_p, "i": ctypes.c_int64, "d": ctypes.c_int32, "f": ctypes.c_float}
    function.restype, function.argtypes = None, [types[letter] for letter in own.signature]
    patch.setattr(module, f"_{name}", Kernel(function, own.address, own.signature))


def test_the_check_of_tiles_holds(library: ctypes.CDLL) -> None:
    library.llmk_amx_tiles_work.restype = ctypes.c_bool
    assert library.llmk_amx_tiles_work()


@pytest.mark.parametrize("shape", [(1, 1), (16, 32), (33, 31), (53, 1121), (300, 770), (257, 64)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_plain_weights(shape: tuple[int, int], dtype: torch.dtype) -> None:
    outputs, inputs = shape
    weight, bias = torch.randn(shape).to(dtype), torch.randn(outputs).to(dtype)
    for rows in (1, 16, 31, 33, 97):
        x = torch.randn(rows, inputs + 3).to(dtype)[:, 2 : 2 + inputs]
        exact = x.double() @ weight.double().T + bias.double()
        check(linear.linear_many(x, weight, bias), Right(exact, dtype), f"{rows} rows")


def test_more_rows_than_a_pass_takes() -> None:
    x, weight = torch.randn(1190, 70).bfloat16(), torch.randn(40, 70).bfloat16()
    exact = x.double() @ weight.double().T
    check(linear.linear_many(x, weight, None), Right(exact, torch.bfloat16), "1,190 rows")


def test_what_lies_behind_a_weight_and_rows_is_not_read_as_numbers() -> None:
    """Blocks are filled up with zeros: NaN in memory that is used again would spread."""
    nan = torch.full((64, 800), torch.nan).bfloat16()
    linear.linear_many(nan, nan, None)
    x, weight = torch.randn(33, 35).bfloat16(), torch.randn(17, 35).bfloat16()
    exact = x.double() @ weight.double().T
    check(linear.linear_many(x, weight, None), Right(exact, torch.bfloat16), "after NaN")


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("shape", [(32, 32), (53, 1120), (300, 800)], ids=str)
def test_integer_weights(shape: tuple[int, int], bits: int) -> None:
    quantize, prepare = {
        4: (quantize_int4_group, quantized.prepare_int4),
        8: (quantize_int8_group, quantized.prepare_int8),
    }[bits]
    parameters = quantize(torch.randn(shape), 32)
    weight = prepare(dict(parameters))
    meaning = weight.rows(None, torch.float32).double()
    x = torch.randn(97, shape[1]).bfloat16()
    found = quantized.linear_groups_many(x, weight, None)
    check(found, Right(x.double() @ meaning.T, torch.bfloat16), f"{bits} bits")

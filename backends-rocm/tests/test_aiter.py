"""AITER's functions are called as its repository declares them, and what is made of them is right, with a package of
the same signatures in plain torch in its place."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import llmk_rocm.aiter
from llmk.api import KernelSpec, LinearQuery
from llmk.api.matching import _check_package, match
from llmk_rocm.aiter.signatures import FUNCTIONS, Function, installed
from llmk_rocm.aiter.specs import attention_specs, linear_specs, moe_specs, op_specs
from llmk_rocm.architectures import KNOWN
from llmk_testing.bench import Bench
from llmk_testing.case import Result
from llmk_testing.suites import cases

PLAYED = Path(__file__).with_name("played")
KERNELS = {spec.id: spec for spec in (*attention_specs(), *linear_specs(), *moe_specs(), *op_specs())}
BY_ARCH = {facts.arch: facts for facts in reversed(KNOWN)}


def forget() -> None:
    """What was read of installed packages."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "aiter"]:
        del sys.modules[name]
    importlib.invalidate_caches()
    _check_package.cache_clear()
    installed.cache_clear()


@pytest.fixture
def aiter(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package in AITER's place."""
    monkeypatch.syspath_prepend(str(PLAYED))
    forget()
    yield
    monkeypatch.undo()
    forget()


def declared(function: ast.FunctionDef) -> str:
    """A function's arguments without annotations."""
    for argument in function.args.args:
        argument.annotation = None
    return ast.unparse(function.args).replace("'", '"')


def written() -> dict[str, set[frozenset[str]]]:
    """By function of AITER, the keywords of each of its calls in this package."""
    found: dict[str, set[frozenset[str]]] = {}
    for file in Path(llmk_rocm.aiter.__file__).parent.glob("*.py"):
        tree = ast.parse(file.read_text())
        imports = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and str(n.module).startswith("aiter")]
        known = {(node.module, alias.name) for node in imports for alias in node.names}
        # Either of two functions of the same arguments is called by one name.
        names = {name: [name] for _, name in known} | {"attend": ["mla_decode_fwd", "mla_prefill_fwd"]}
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            for name in names.get(getattr(call.func, "id", ""), ()):
                assert not call.args, f"{name} is called by position"
                found.setdefault(name, set()).add(frozenset(str(keyword.arg) for keyword in call.keywords))
        for module, name in known - {("aiter.ops.enum", "ActivationType"), ("aiter.ops.enum", "QuantType")}:
            assert any((each.module, each.name) == (module, name) for each in FUNCTIONS), f"{module}.{name}"
    return found


def test_every_call_is_by_keyword_as_recorded() -> None:
    calls = written()
    assert {function.name for function in FUNCTIONS} == set(calls)
    for function in FUNCTIONS:
        assert calls[function.name] == {frozenset(function.given)}, function.name
        names = {part.partition("=")[0].strip() for part in function.arguments.split(",")}
        assert set(function.given) <= names, function.name


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.name)
def test_what_stands_in_has_the_recorded_signature(function: Function) -> None:
    file = PLAYED.joinpath(*function.module.split(".")).with_suffix(".py")
    nodes = [n for n in ast.parse(file.read_text()).body if isinstance(n, ast.FunctionDef) and n.name == function.name]
    (recorded,) = ast.parse(f"def f({function.arguments}): ...").body
    assert isinstance(recorded, ast.FunctionDef)
    assert declared(nodes[0]) == declared(recorded)


@cache
def bench() -> Bench:
    return Bench.open("cpu")


def labelled(spec: KernelSpec) -> Bench:
    """The CPU as an Instinct GPU that has the format."""
    arch = "gfx950" if "fp8" in spec.needs.features else "gfx942"
    facts = replace(BY_ARCH[arch], device_type="cpu", dtypes=("bfloat16", "float32"))
    return replace(bench(), facts=facts)


@pytest.mark.slow
@pytest.mark.usefixtures("aiter")
@pytest.mark.parametrize("id", KERNELS)
def test_kernels_conform(id: str) -> None:
    spec = KERNELS[id]
    # What stands in for AITER takes row by row and looks at values on the host, so neither its cost nor a recording of
    # it is tried.
    left = ("can be recorded", "rows are computed together")
    tried = [case for case in cases(spec.kind, spec, labelled(spec)) if not case.name.startswith(left)]
    results = [Result.of(case) for case in tried]
    assert [f"{result.name}: {result.message}" for result in results if result.outcome == "failed"] == []
    assert sum(result.outcome == "passed" for result in results) >= 3, [str(result) for result in results]


def query(**changes: Any) -> LinearQuery:
    asked = {"in_features": 256, "out_features": 128, "dtype": "bfloat16", "weight_format": "fp8_block"}
    return LinearQuery(platform=BY_ARCH["gfx942"], site="o", **(asked | changes))


@pytest.mark.usefixtures("aiter")
def test_an_aiter_that_lacks_a_function_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = KERNELS["rocm.aiter_fp8_block_fnuz"]
    assert match(spec, query())
    for text, code in (
        (None, "no such module"),
        ("def other(): ...\n", "no such function"),
        ("def gemm_a8w8_blockscale(XQ, WQ, x_scale, w_scale): ...\n", "WQ, XQ, w_scale, x_scale"),
        ("def gemm_a8w8_blockscale(XQ, WQ, x_scale, w_scale, dtype, isBpreshuffled, more): ...\n", "more"),
        ("def gemm_a8w8_blockscale(XQ, /, WQ, x_scale, w_scale, dtype, isBpreshuffled): ...\n", "(WQ, dtype, is"),
        ("def gemm_a8w8_blockscale(:\n", "no such function"),
    ):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        (folder / "aiter/ops").mkdir(parents=True)
        (folder / "aiter/__init__.py").write_text("raise ImportError('it is broken, and not imported')\n")
        if text is not None:
            (folder / "aiter/ops/gemm_op_a8w8.py").write_text(text)
        monkeypatch.syspath_prepend(str(folder))
        forget()
        (reason,) = match(spec, query()).reasons
        assert reason.code == ("function_differs" if ", " in code or code == "more" else "function_missing")
        assert code in str(reason)
        assert "at commit 0006ebde" in str(reason)


@pytest.mark.usefixtures("aiter")
def test_fp8_blocks_keep_their_values() -> None:
    from llmk.reference.quantize import quantize_fp8_block
    from llmk.reference.quantized_weight import prepare_fp8_block
    from llmk_rocm.aiter import linear

    torch.manual_seed(5)
    stored = quantize_fp8_block(torch.randn(208, 256, dtype=torch.bfloat16))
    exact_weight = prepare_fp8_block(stored).dequantize(torch.float64).t()
    for prepare in (linear.prepare_block_fnuz, prepare_fp8_block):
        for rows in (1, 5):
            x = torch.randn(rows, 256, dtype=torch.bfloat16) * torch.tensor([1.0, 100.0]).repeat_interleave(128)
            found = linear.linear_block(x.bfloat16(), prepare(stored), None).double()
            exact = x.double() @ exact_weight
            assert (found - exact).norm() < 0.04 * exact.norm()

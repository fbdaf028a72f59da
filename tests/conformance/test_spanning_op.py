"""An op that a wheel puts in place of neighbouring sites, which models don't name: the kit tries its pattern."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from killing import check_good, failed
from torch import Tensor

from llmk.api import KernelSpec, OpContract
from llmk.kernel.registry import Registry
from llmk_testing.bench import Bench
from llmk_testing.binding import oracle


def contract_of(bench: Bench) -> OpContract:
    return bench.registry.contracts["activate_linear"]


def test_a_good_contract_passes(bench: Bench) -> None:
    check_good("op_contract", contract_of(bench), bench)


def make_before_the_activation(parts: Mapping[str, Callable[..., Tensor]]) -> Callable[..., Tensor]:
    """The linear layer comes first."""

    def activate_linear(x: Tensor, activation: str, weight: Any, bias: Tensor | None) -> Tensor:
        return parts["activate"](parts["linear"](x, weight, bias), activation)

    return activate_linear


def make_always_silu(parts: Mapping[str, Callable[..., Tensor]]) -> Callable[..., Tensor]:
    """Whatever the activation is."""

    def activate_linear(x: Tensor, activation: str, weight: Any, bias: Tensor | None) -> Tensor:
        return parts["linear"](parts["activate"](x, "silu"), weight, bias)

    return activate_linear


@pytest.mark.parametrize("make", [make_before_the_activation, make_always_silu])
def test_a_reference_that_computes_something_else_is_found(
    make: Callable[..., Any], bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = oracle(bench.registry, "activate_linear")
    bad = replace(good, implementation=f"{make.__module__}:{make.__name__}")

    def kernels(registry: Registry, kind: str) -> list[Any]:
        return [replace(each, spec=bad) if each.spec is good else each for each in registry.of(KernelSpec, kind)]

    monkeypatch.setattr(Registry, "kernels", kernels)
    assert any("pattern" in name for name in failed("op_contract", contract_of(bench), bench))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pattern": ("softcap", "linear")}, "activate, then"),
        ({"pattern": ("no_such", "linear")}, "the op 'no_such', which no installed wheel has"),
        ({"pattern": ("xielu", "linear")}, "has 4 arguments; those of xielu, weight and bias are 7"),
    ],
)
def test_a_pattern_that_is_not_true_is_found(changes: dict[str, Any], message: str, bench: Bench) -> None:
    found = failed("op_contract", replace(contract_of(bench), **changes), bench)
    assert any("pattern" in name for name in found)
    if "activate" not in message:
        assert message in "\n".join(found.values())


@pytest.mark.parametrize("pattern", [("linear", "softcap"), ("linear", "linear"), ("activate",), ("a", "b", "linear")])
def test_other_patterns_are_refused(pattern: tuple[str, ...], bench: Bench) -> None:
    with pytest.raises(ValueError, match="is not an op and 'linear' after it"):
        replace(contract_of(bench), pattern=pattern)

"""What the probe says where the wheel lacks its library, and of machines that have not to be here."""

from __future__ import annotations

import pytest

from llmk_cpu.examples import AVX2
from llmk_cpu.machine import parse_list
from llmk_cpu.native.specs import FEATURE, GRAPHS, PACKED
from llmk_cpu.probe import KNOWN, facts_of
from llmk_cpu.specs import llmk_platforms
from llmk_testing.suites.platform_machines import check_machines


def test_the_library_is_a_feature() -> None:
    flags = frozenset(AVX2.split())
    without = facts_of("x86_64", flags, native=False).features
    assert facts_of("x86_64", flags).features - without == {FEATURE, GRAPHS, PACKED}
    assert PACKED not in facts_of("x86_64", frozenset()).features


def test_without_the_library_bfloat16_needs_instructions() -> None:
    flags = frozenset(AVX2.split())
    assert facts_of("x86_64", flags, native=False).dtypes == ("float32",)
    assert facts_of("x86_64", flags | {"avx512_bf16"}, native=False).dtypes == ("bfloat16", "float32")


@pytest.mark.hook("llmk_platforms")
def test_known_machines_have_different_facts() -> None:
    (spec,) = llmk_platforms()
    assert spec.known == KNOWN
    labels = [facts.label for facts in spec.known]
    assert len(set(labels)) == len(labels)
    assert {"cpu/x86_64-avx2", "cpu/x86_64-avx512", "cpu/x86_64-amx", "cpu/aarch64"} <= set(labels)
    assert {"cpu/neoverse-v2", "cpu/power9", "cpu/power10", "cpu/power11", "cpu/z16", "cpu/riscv64"} <= set(labels)


@pytest.mark.parametrize(("text", "numbers"), [("0-3,8", {0, 1, 2, 3, 8}), ("5", {5}), ("", set())])
def test_lists_of_cpus(text: str, numbers: set[int]) -> None:
    assert parse_list(text) == numbers


@pytest.mark.hook("llmk_platforms")
def test_machines_are_what_their_files_say() -> None:
    (spec,) = llmk_platforms()
    check_machines(spec)

"""What the plugin ``tern`` registers: a reasoning dialect, a format of ternary weights, a GEMM and a platform. It needs
no torch."""

from __future__ import annotations

from collections.abc import Iterable

from llmk.api import (
    FIRST_FIELDS,
    OK,
    KernelSpec,
    LinearQuery,
    Needs,
    ParserSpec,
    PlatformSpec,
    QuantizationSpec,
    RankRules,
    Tier,
    Verdict,
    hookimpl,
    no,
)
from llmk_estuary import tern_machine, tern_reasoning, tern_t5_config

_PACKAGE = "llmk_estuary"


def supports(query: LinearQuery) -> Verdict:
    """Weights of 4 bits in groups."""
    if query.weight_format != "int4_group":
        return no("weight_format", wanted=query.weight_format, found="int4_group")
    return OK


@hookimpl
def llmk_reasoning_parsers() -> Iterable[ParserSpec]:
    """Dialects of thinking."""
    return [
        ParserSpec(
            id="tern.lagoon",
            name="lagoon",
            implementation=f"{_PACKAGE}.tern_reasoning:LagoonParser",
            claims=tern_reasoning.claims,
            markers=(tern_reasoning.OPEN, tern_reasoning.CLOSE),
            examples=f"{_PACKAGE}.tern_examples:LAGOON",
            summary="[[think]] blocks, whose language and effort stand behind the opening marker",
        )
    ]


@hookimpl
def llmk_quantization_methods() -> Iterable[QuantizationSpec]:
    """Formats of weights."""
    return [
        QuantizationSpec(
            id="tern.t5",
            name="t5",
            weight_format="int4_group",
            claims=tern_t5_config.claims,
            modules=tern_t5_config.modules,
            weight_bits=4.25,
            implementation=f"{_PACKAGE}.tern_t5:T5",
            examples=f"{_PACKAGE}.tern_examples:T5",
            summary="ternary weights, five to a byte, with a scale per group of inputs",
        )
    ]


@hookimpl
def llmk_linear_kernels() -> Iterable[KernelSpec]:
    """GEMMs."""
    return [
        KernelSpec(
            id="tern.linear_slabs",
            kind="linear",
            implementation=f"{_PACKAGE}.tern_linear:linear",
            prepare=f"{_PACKAGE}.tern_linear:prepare",
            layout="tern_slabs",
            tier=Tier.PORTABLE,
            needs=Needs(dtypes=("float32", "bfloat16", "float16")),
            supports=supports,
            knows=FIRST_FIELDS | {"lookup"},
            capture="full",
            summary="4-bit weights that lie output by output, widened in slabs",
        )
    ]


@hookimpl
def llmk_platforms() -> Iterable[PlatformSpec]:
    """Devices."""
    return [
        PlatformSpec(
            id="tern.platform",
            name=tern_machine.NAME,
            implementation=f"{_PACKAGE}.tern_platform:TernPlatform",
            probe=tern_machine.probe,
            known=tern_machine.known(),
            # Below the CPU's own platform, which serves the same processors with kernels of its own.
            rank=-10,
            ranks=RankRules(resource="TERN", visible=(tern_machine.VISIBLE,)),
            examples=f"{_PACKAGE}.tern_examples:MACHINES",
            summary="Tern matrix units, on cards or in the host's processor",
        )
    ]

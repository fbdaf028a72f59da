"""What the entry point ``quay`` registers. It needs no torch."""

from __future__ import annotations

from llmk.api import (
    FIRST_FIELDS,
    OK,
    KernelSpec,
    LinearQuery,
    Needs,
    ParserSpec,
    PlatformFacts,
    PlatformSpec,
    QuantizationSpec,
    RankRules,
    Tier,
    Verdict,
    hookimpl,
    no,
)
from llmk_harbor import quay_berth_config, quay_logbook, quay_machine

_KNOWN = (
    PlatformFacts(
        name=quay_machine.NAME,
        arch="x86_64-avx2",
        device_type="cpu",
        arch_family="x86_64",
        arch_version=(3,),
        features=frozenset({"avx2", "fma", "f16c"}),
        num_devices=2,
        shared_device=True,
    ),
    PlatformFacts(
        name=quay_machine.NAME,
        arch="x86_64-avx512",
        device_type="cpu",
        arch_family="x86_64",
        arch_version=(4,),
        features=frozenset({"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16"}),
        dtypes=("bfloat16", "float32"),
        num_devices=8,
        shared_device=True,
    ),
    PlatformFacts(
        name=quay_machine.NAME,
        arch="aarch64-bf16",
        device_type="cpu",
        arch_family="aarch64",
        arch_version=(9,),
        features=frozenset({"asimd", "asimdhp", "asimddp", "sve", "sve2", "i8mm", "bf16", "svebf16"}),
        dtypes=("bfloat16", "float32"),
        num_devices=2,
        shared_device=True,
    ),
)


def supports(query: LinearQuery) -> Verdict:
    """8-bit weights by groups, of any size."""
    if query.weight_format == "int8_group":
        return OK
    return no("weight_format", wanted=query.weight_format, found="int8_group")


@hookimpl
def llmk_reasoning_parsers() -> list[ParserSpec]:
    """Dialects of reasoning."""
    return [
        ParserSpec(
            id="quay.logbook",
            name="logbook",
            implementation="llmk_harbor.quay_logbook:LogbookParser",
            claims=quay_logbook.claims,
            markers=(quay_logbook.OPEN, quay_logbook.CLOSE),
            examples="llmk_harbor.quay_examples:LOGBOOK",
            summary="<<log>> blocks, whose entries may be numbered and titled",
        )
    ]


@hookimpl
def llmk_quantization_methods() -> list[QuantizationSpec]:
    """Formats of weights."""
    return [
        QuantizationSpec(
            id="quay.berth",
            name="berth",
            weight_format="int8_group",
            claims=quay_berth_config.claims,
            modules=quay_berth_config.modules,
            # Levels of 8 bits, and a scale of 16 for each group; groups of 64 take 0.25 less.
            weight_bits=8 + 16 / 32,
            implementation="llmk_harbor.quay_berth:Berth",
            examples="llmk_harbor.quay_examples:BERTH",
            summary="4-bit codes into a codebook of each matrix, with a scale per group of inputs",
        )
    ]


@hookimpl
def llmk_linear_kernels() -> list[KernelSpec]:
    """Linear kernels."""
    return [
        KernelSpec(
            id="quay.linear_groups",
            kind="linear",
            implementation="llmk_harbor.quay_linear:linear",
            prepare="llmk_harbor.quay_linear:prepare",
            layout="quay_groups",
            tier=Tier.PORTABLE,
            needs=Needs(dtypes=("float32", "bfloat16", "float16")),
            supports=supports,
            knows=FIRST_FIELDS | {"lookup"},
            capture="full",
            summary="GEMMs of int8 weights that lie group by group, widened a panel at a time",
        )
    ]


@hookimpl
def llmk_platforms() -> list[PlatformSpec]:
    """Platforms."""
    return [
        PlatformSpec(
            id="quay.numa",
            name=quay_machine.NAME,
            implementation="llmk_harbor.quay_platform:NumaPlatform",
            probe=quay_machine.probe,
            known=_KNOWN,
            # Every machine with Linux has nodes, and most are served better by what llmk has for CPUs.
            rank=-1000,
            ranks=RankRules(resource="NUMA", network=("GLOO_SOCKET_IFNAME",), visible=(quay_machine.VISIBLE,)),
            examples="llmk_harbor.quay_examples:MACHINES",
            summary="NUMA nodes as devices",
        )
    ]

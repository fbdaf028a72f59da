"""The plugin ``cpu``: platform, linear kernels, defaults and checks. Imports no torch."""

from __future__ import annotations

from llmk.api import (
    OK,
    ArchRange,
    Default,
    Host,
    KernelSpec,
    LinearQuery,
    ModelFacts,
    Needs,
    PlatformFacts,
    PlatformSpec,
    Problem,
    Tier,
    Verdict,
    hookimpl,
    no,
)
from llmk_cpu.machine import cores
from llmk_cpu.probe import KNOWN, probe

_SMALLEST_THREADED = 1 << 25
"""Parameters of a model below which handing work to a second thread takes longer than the work."""

_SMALLEST_FLOAT32 = 1 << 19
"""Elements of a float32 weight below which torch's own product is quicker, by measurement of 1 to 512 rows."""

_PREPACKED = Needs(platforms=("cpu",), archs=(ArchRange("x86_64", (3,)),), dtypes=("bfloat16", "float32"))


@hookimpl
def llmk_platforms() -> list[PlatformSpec]:
    """The CPU, usable everywhere and ranked below every accelerator."""
    return [
        PlatformSpec(
            id="cpu.cpu",
            name="cpu",
            implementation="llmk_cpu.platform:CPUPlatform",
            probe=probe,
            known=KNOWN,
            vouches=("llmk-int8",),
            summary="any CPU that torch runs on",
        )
    ]


def supports_prepacked(query: LinearQuery) -> Verdict:
    """Plain weights, where the machine multiplies their dtype itself and the product is large enough to gain."""
    verdict = OK
    if query.weight_format != "plain":
        verdict &= no("weight_format", wanted=query.weight_format, found="plain")
    if query.dtype == "bfloat16" and not query.platform.features & {"avx512_bf16", "amx_bf16"}:
        verdict &= no("missing_feature", wanted="avx512_bf16 or amx_bf16 for bfloat16", found=query.platform.arch)
    size = query.in_features * query.out_features
    if query.dtype == "float32" and size < _SMALLEST_FLOAT32:
        verdict &= no("too_small", wanted=f"at least {_SMALLEST_FLOAT32} elements in float32", found=size)
    return verdict


def supports_torch(query: LinearQuery) -> Verdict:
    """Plain weights."""
    if query.weight_format == "plain":
        return OK
    return no("weight_format", wanted=query.weight_format, found="plain")


@hookimpl
def llmk_linear_kernels() -> list[KernelSpec]:
    """oneDNN on prepacked weights where that is quicker, torch's own product elsewhere; the former in a form that is
    deterministic, too."""
    return [
        KernelSpec(
            id="cpu.linear_prepacked",
            kind="linear",
            implementation="llmk_cpu.linear:linear_prepacked",
            prepare="llmk_cpu.linear:prepack",
            layout="onednn",
            tier=Tier.VENDOR,
            needs=_PREPACKED,
            supports=supports_prepacked,
            summary="oneDNN product with weights in its blocked layout",
        ),
        KernelSpec(
            id="cpu.linear_prepacked_invariant",
            kind="linear",
            implementation="llmk.reference.linear:linear_invariant",
            prepare="llmk_cpu.linear:prepack_invariant",
            layout="onednn_tiled",
            tier=Tier.VENDOR,
            score=-1,
            needs=_PREPACKED,
            supports=supports_prepacked,
            deterministic=True,
            summary="the same by tiles of rows: slower, and each row the same in any batch",
        ),
        KernelSpec(
            id="cpu.linear_torch",
            kind="linear",
            implementation="torch.nn.functional:linear",
            tier=Tier.PORTABLE,
            needs=Needs(platforms=("cpu",)),
            supports=supports_torch,
            summary="torch's own product",
        ),
    ]


@hookimpl
def llmk_config_defaults(platform: PlatformFacts, model: ModelFacts | None) -> list[Default]:
    """Half of the free memory for the cache, short steps where several tenants are served, and threads for the cores
    there are, where the plan is for this machine.
    """
    if platform.name != "cpu":
        return []
    shared = "the machine's memory serves other programs too, and what is free now may not be later"
    linear = "on a CPU a step takes longer with every token, so that one tenant's prompt would slow another's answer"
    defaults = [Default("cache.memory_share", 0.5, shared), Default("scheduler.max_slowdown", 1.5, linear)]
    host = Host()
    if platform == probe(host).facts:
        defaults.append(_advise_threads(host, model))
    return defaults


def _advise_threads(host: Host, model: ModelFacts | None) -> Default:
    if model is not None and model.num_parameters < _SMALLEST_THREADED:
        why = f"a model of {model.num_parameters:,} parameters has too little work in a step to share out"
        return Default("platform.threads", 1, why)
    here = cores(host)
    why = f"{here.physical} physical of {here.logical} usable logical cores"
    if here.quota:
        why += f", a quota of {here.quota:g}"
    if here.nodes > 1:
        why += f"; they span {here.nodes} NUMA nodes, so one engine per node, each bound with numactl, would be quicker"
    return Default("platform.threads", here.advised_threads, why)


@hookimpl
def llmk_check_config(config: object, platform: PlatformFacts) -> list[Problem]:
    """More threads than cores wait for one another at every operator."""
    host = Host()
    threads = config.platform.threads  # type: ignore[attr-defined]
    usable = cores(host).logical
    if platform != probe(host).facts or threads <= usable:
        return []
    return [
        Problem(
            "platform.threads",
            f"{threads} threads on the {usable} logical cores that this process may use would stall each other",
            f"set it to {cores(host).advised_threads}, or leave it at 0",
        )
    ]

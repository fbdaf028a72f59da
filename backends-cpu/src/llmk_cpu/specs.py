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
    RankRules,
    Tier,
    Verdict,
    hookimpl,
    no,
)
from llmk_cpu.machine import cores
from llmk_cpu.native import gemm_specs
from llmk_cpu.native import specs as native
from llmk_cpu.probe import KNOWN, probe

_SMALLEST_THREADED = 1 << 25
"""Parameters of a model below which a second thread costs more than it saves."""

_SMALLEST_FLOAT32 = 1 << 19
"""Elements of a float32 weight below which torch's own GEMM is faster, measured with 1 to 512 rows."""

_PREPACKED = Needs(platforms=("cpu",), archs=(ArchRange("x86_64", (4,)),), dtypes=("bfloat16", "float32"))
"""AVX-512. With AVX2, other GEMMs are faster, or as fast, for any number of rows, measured on Zen 3. In bfloat16, it is
for wheels without the C++ library."""


@hookimpl
def llmk_platforms() -> list[PlatformSpec]:
    """The CPU, usable everywhere and ranked below every accelerator."""
    return [
        PlatformSpec(
            id="cpu.cpu",
            name="cpu",
            implementation="llmk_cpu.platform:CPUPlatform",
            ranks=RankRules(network=("GLOO_SOCKET_IFNAME",)),
            probe=probe,
            known=KNOWN,
            vouches=("llmk-int8",),
            examples="llmk_cpu.examples:MACHINES",
            summary="any CPU that torch runs on",
        )
    ]


def supports_prepacked(query: LinearQuery) -> Verdict:
    """Plain weights in a dtype with native arithmetic that native kernels don't use, if the GEMM is large enough to
    benefit."""
    verdict = OK
    if query.weight_format != "plain":
        verdict &= no("weight_format", wanted=query.weight_format, found="plain")
    features = query.platform.features
    if query.dtype == "bfloat16":
        if native.FEATURE in features:
            verdict &= no("missing_feature", wanted="no native GEMMs, which are faster", found=query.platform.arch)
        elif not features & {"avx512_bf16", "amx_bf16"}:
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
    """Native GEMMs; oneDNN with prepacked weights where that is faster, also in a batch-invariant version; torch's
    own GEMM elsewhere."""
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
            capture="full",
            summary="oneDNN GEMM with weights in its blocked layout",
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
            capture="full",
            deterministic=True,
            summary="the same by tiles of rows: slower, but batch-invariant",
        ),
        KernelSpec(
            id="cpu.linear_torch",
            kind="linear",
            implementation="torch.nn.functional:linear",
            tier=Tier.PORTABLE,
            needs=Needs(platforms=("cpu",)),
            supports=supports_torch,
            capture="full",
            summary="torch's own GEMM",
        ),
        *gemm_specs.linear_kernels(),
    ]


@hookimpl
def llmk_moe_kernels() -> list[KernelSpec]:
    """Mixtures of experts of the C++ library."""
    return gemm_specs.moe_kernels()


@hookimpl
def llmk_attention_backends() -> list[KernelSpec]:
    """Paged attention of the C++ library."""
    return native.attention_backends()


@hookimpl
def llmk_ops() -> list[KernelSpec]:
    """Ops of the C++ library."""
    return native.ops()


@hookimpl
def llmk_config_defaults(platform: PlatformFacts, model: ModelFacts | None) -> list[Default]:
    """Half of the free memory for the cache; short steps if several tenants are served; no standby process; float32
    where bf16 would be slow; and, if the plan is for this machine, one thread per core.
    """
    if platform.name != "cpu":
        return []
    shared = "the machine's memory serves other programs too, and what is free now may not be later"
    linear = "on a CPU, a step's time grows with every token, so one tenant's prompt would slow down another's answer"
    standby = "a process that only waits to replace the engine would take 180 MB of the memory that the model is in"
    defaults = [
        Default("cache.memory_share", 0.5, shared),
        Default("scheduler.max_slowdown", 1.5, linear),
        Default("engine.standby", False, standby),
    ]
    if model is not None and model.dtype == "bfloat16" and not _native_in(model, platform):
        slow = "without bf16 arithmetic, torch computes in it many times slower, and no native kernel serves this model"
        defaults.append(Default("model.dtype", "float32", slow))
    host = Host()
    if platform == probe(host).facts:
        defaults.append(_advise_threads(host, model))
    return defaults


def _native_in(model: ModelFacts, platform: PlatformFacts) -> bool:
    """Whether the processor has bf16 arithmetic, or native kernels compute the model's attention and GEMMs."""
    own = bool(model.linear) and all(site.latent_dim is None for site in model.attention)
    return platform.dtypes[0] == "bfloat16" or "bfloat16" not in platform.dtypes or own


def _advise_threads(host: Host, model: ModelFacts | None) -> Default:
    if model is not None and model.num_parameters < _SMALLEST_THREADED:
        why = f"a model of {model.num_parameters:,} parameters has too little work per step for several threads"
        return Default("platform.threads", 1, why)
    here = cores(host)
    why = f"{here.physical} physical of {here.logical} usable logical cores"
    if here.quota:
        why += f", a quota of {here.quota:g}"
    if here.reserved:
        why += f", less {here.reserved} for the front end"
    if here.nodes > 1:
        why += (
            f"; they span {here.nodes} NUMA nodes: --replicas {here.nodes} puts an engine on each, and "
            f"--parallel.tensor {here.nodes} with --parallel.bind a rank"
        )
    return Default("platform.threads", here.advised_threads, why)


@hookimpl
def llmk_check_config(config: object, platform: PlatformFacts) -> list[Problem]:
    """With more threads than cores, threads wait for each other at every operator."""
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

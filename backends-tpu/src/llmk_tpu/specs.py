"""The plugin ``tpu``: platform, executor, defaults and configuration. Imports neither torch nor JAX."""

from __future__ import annotations

from pydantic import BaseModel, Field

from llmk.api import (
    OK,
    Default,
    ExecutorQuery,
    ExecutorSpec,
    ModelFacts,
    PlatformFacts,
    PlatformSpec,
    RankRules,
    SelectionError,
    Verdict,
    hookimpl,
    no,
)
from llmk.tree import SelfAttention
from llmk_tpu.kernels import KERNELS
from llmk_tpu.probe import EMULATED, KNOWN, probe
from llmk_tpu.support import check

_DTYPES = ("float32", "bfloat16", "float16")


@hookimpl
def llmk_platforms() -> list[PlatformSpec]:
    """TPUs, through JAX."""
    return [
        PlatformSpec(
            id="tpu.tpu",
            name="tpu",
            implementation="llmk_tpu.platform:TPUPlatform",
            ranks=RankRules(resource="TPU", visible=("TPU_VISIBLE_CHIPS",)),
            probe=probe,
            known=KNOWN,
            rank=100,
            summary="Google's TPUs through JAX, or JAX's CPU in their place",
        )
    ]


@hookimpl
def llmk_executors() -> list[ExecutorSpec]:
    """The executor that makes one program of a whole step."""
    return [
        ExecutorSpec(
            id="tpu.jax",
            name="jax",
            implementation="llmk_tpu.executor:JaxExecutor",
            supports=supports,
            knows=frozenset({"kernels", "top_k", "top_p", "min_p"}),
            kernels=KERNELS,
            summary="whole steps as JAX programs, built from the model's tree",
        )
    ]


def supports(query: ExecutorQuery) -> Verdict:
    """Trees of which the JAX runtime understands everything, with one shape of keys and values."""
    verdict = OK
    if query.platform.name != "tpu":
        verdict &= no("platform", wanted="tpu", found=query.platform.name)
    if query.pipeline > 1:
        verdict &= no("pipeline", wanted="parallel.pipeline = 1", found=query.pipeline)
    if query.cache_dtype not in _DTYPES:
        verdict &= no("cache_dtype", wanted=" or ".join(_DTYPES), found=query.cache_dtype)
    if query.tree is None:
        return verdict & no("no_tree", wanted="a model family that gives a tree", found=query.model.model)
    try:
        check(query.tree)
    except SelectionError as error:
        return verdict & no("not_built", wanted="a tree that JAX can build", found=error.message)
    blocks = (getattr(part, "block", None) for layer in query.tree.layers for part in layer)
    kept = {(b.attend.kv_heads, b.attend.head_dim) for b in blocks if isinstance(b, SelfAttention)}
    if len(kept) != 1:
        shapes = ", ".join(f"{heads} x {dim}" for heads, dim in sorted(kept)) or "no attention"
        verdict &= no("cache_shape", wanted="layers that all keep keys of one shape", found=shapes)
    return verdict


@hookimpl
def llmk_config_defaults(platform: PlatformFacts, model: ModelFacts | None) -> list[Default]:
    """On an emulated TPU, half of the free memory for the cache, and programs compiled when they are needed."""
    if platform.name != "tpu" or platform.arch != EMULATED:
        return []
    shared = "the machine's memory serves other programs too, and what is free now may not be later"
    rarely = "an emulated TPU is for trying things out, which needs few of the programs"
    return [Default("cache.memory_share", 0.5, shared), Default("engine.warm_up", False, rarely)]


class Options(BaseModel, extra="forbid", frozen=True):
    """``[plugin.tpu]``."""

    emulate: bool = Field(default=False, description="Run what would run on a TPU on the CPU, through JAX.")
    compilation_cache: str = Field(default="", description="Folder that keeps compiled programs between starts.")


@hookimpl
def llmk_config_schema() -> type[BaseModel]:
    """The plugin's section."""
    return Options

"""The section of the configuration on how a model is spread."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from llmk.config.section import Section


class ParallelSection(Section):
    """Model parallelism: there are tensor times pipeline ranks, each a process."""

    tensor: Annotated[int, Field(ge=1)] = Field(default=1, description="Tensor-parallel size.")
    pipeline: Annotated[int, Field(ge=1)] = Field(default=1, description="Pipeline-parallel size: number of stages.")
    all_reduce: Literal["auto", "library"] = Field(
        default="auto",
        description="What sums over tensor-parallel ranks: 'auto', the platform's own all-reduce where it is faster; "
        "'library', torch.distributed's backend alone.",
    )
    bind: bool = Field(
        default=False,
        description="Bind ranks that share a device, as those on CPUs do, to a share of the CPUs each: consecutive "
        "cores, of a NUMA node of their own where there are as many.",
    )
    silence_seconds: Annotated[float, Field(ge=1)] = Field(
        default=15.0,
        description="A process on another machine whose connection is silent for so long is given up.",
    )

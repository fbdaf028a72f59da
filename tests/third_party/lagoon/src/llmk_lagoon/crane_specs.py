"""The plugin module: what this distribution registers. It imports no torch."""

from __future__ import annotations

import re

from pydantic import BaseModel

from llmk.api import (
    FIRST_FIELDS,
    OK,
    CheckpointFormatSpec,
    KernelSpec,
    LinearQuery,
    ModelSourceSpec,
    Needs,
    QuantizationSpec,
    StatLoggerSpec,
    Tier,
    Verdict,
    hookimpl,
    no,
)

from . import crane_mlx_config, crane_tar_header
from .crane_options import Options

S3_NAME = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9!_.*'()-]+)+")


def claims_s3(reference: str) -> Verdict:
    """A bucket and a prefix, of the characters that are safe in keys."""
    path = reference.removeprefix("s3://")
    if S3_NAME.fullmatch(reference) and len(path) <= 200 and not {".", ".."} & set(path.split("/")):
        return OK
    return no("form", wanted="s3://BUCKET/PREFIX", found=reference[:100])


def supports_panels(query: LinearQuery) -> Verdict:
    """int8 weights with scales for groups of inputs, embedding tables too."""
    if query.weight_format == "int8_group":
        return OK
    return no("weight_format", wanted=query.weight_format, found="int8_group")


@hookimpl
def llmk_config_schema() -> type[BaseModel]:
    """The options."""
    return Options


@hookimpl
def llmk_stat_loggers() -> list[StatLoggerSpec]:
    """Stat loggers. A logger is only used if ``server.stat_loggers`` names it."""
    return [
        StatLoggerSpec(
            id="crane.influx",
            name="influx",
            implementation="llmk_lagoon.crane_influx:Influx",
            examples="llmk_lagoon.crane_influx_examples:INFLUX",
            summary="metrics to InfluxDB, in its line protocol over HTTP",
        )
    ]


@hookimpl
def llmk_linear_kernels() -> list[KernelSpec]:
    """Linear kernels."""
    return [
        KernelSpec(
            id="crane.panels",
            kind="linear",
            implementation="llmk_lagoon.crane_panels:panels",
            prepare="llmk_lagoon.crane_panels:prepare",
            layout="crane_int8_group",
            tier=Tier.PORTABLE,
            needs=Needs(dtypes=("bfloat16", "float16", "float32")),
            supports=supports_panels,
            knows=FIRST_FIELDS | {"lookup"},
            summary="int8 weights in groups, widened a panel of outputs at a time",
        )
    ]


@hookimpl
def llmk_quantization_methods() -> list[QuantizationSpec]:
    """Quantization methods."""
    return [
        QuantizationSpec(
            id="crane.mlx",
            name="mlx",
            weight_format="int4_group",
            claims=crane_mlx_config.claims,
            modules=crane_mlx_config.modules,
            weight_bits=4.75,
            implementation="llmk_lagoon.crane_mlx:Mlx",
            examples="llmk_lagoon.crane_mlx_examples:MLX",
            summary="checkpoints of MLX, 4 bits with a scale and a bias by group",
        )
    ]


@hookimpl
def llmk_model_sources() -> list[ModelSourceSpec]:
    """Sources of models."""
    return [
        ModelSourceSpec(
            id="crane.s3",
            name="s3",
            claims=claims_s3,
            implementation="llmk_lagoon.crane_s3:Bucket",
            examples="llmk_lagoon.crane_s3_examples:filled",
            summary="models in buckets that speak S3's protocol",
        )
    ]


@hookimpl
def llmk_checkpoint_formats() -> list[CheckpointFormatSpec]:
    """Formats of checkpoints."""
    return [
        CheckpointFormatSpec(
            id="crane.tar",
            name="tar",
            claims=crane_tar_header.claims,
            implementation="llmk_lagoon.crane_tar:read",
            examples="llmk_lagoon.crane_tar_examples:TAR",
            summary="a Hugging Face folder that was packed with tar, read as it is",
        )
    ]

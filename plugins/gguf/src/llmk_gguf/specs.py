"""The plugin module of ``llmk-gguf``: the format, and methods for weights that stay packed. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from pydantic import BaseModel, Field

from llmk.api import (
    OK,
    Checkpoint,
    CheckpointError,
    CheckpointFile,
    CheckpointFormatSpec,
    Default,
    PlatformFacts,
    QuantizationSpec,
    Verdict,
    hookimpl,
    no,
)
from llmk.api.specs import ReadsModule

PACKED_FEATURE = "packed_weights"
"""Feature of platforms whose kernels are faster with weights that stay packed."""

METHOD = "gguf"
"""``quant_method`` of files whose weights stay packed."""


class Options(BaseModel, extra="forbid"):
    """``[plugin.gguf]``."""

    weights: Literal["plain", "packed"] = Field(
        "plain",
        description="plain: quantized weights are dequantized while they load, so they take as much memory as in the"
        " model's dtype, and are as fast. packed: they stay quantized in memory, where their type allows it. That is"
        " the default on platforms with fast kernels for them, but in float32.",
    )


@hookimpl
def llmk_config_schema() -> type[BaseModel]:
    """Whether weights stay packed."""
    return Options


@hookimpl
def llmk_config_defaults(platform: PlatformFacts, config: Any) -> list[Default]:
    """Weights that stay packed where that is faster; in float32, which kernels for them don't round to, they don't."""
    if PACKED_FEATURE not in platform.features or config.model.dtype == "float32":
        return []
    why = f"{platform.label} has kernels for weights that stay packed, which read less memory"
    return [Default("plugin.gguf.weights", "packed", why)]


@hookimpl
def llmk_checkpoint_formats() -> list[CheckpointFormatSpec]:
    """GGUF files."""
    return [
        CheckpointFormatSpec(
            id="gguf.gguf",
            name="gguf",
            claims=claims,
            implementation="llmk_gguf.reader:read_gguf",
            summary="GGUF files of llama.cpp, with their tokenizer and chat template",
        )
    ]


@hookimpl
def llmk_quantization_methods() -> list[QuantizationSpec]:
    """Weights of GGUF files that stay packed, by the format that their types become."""
    return [
        QuantizationSpec(
            id=f"gguf.{name}",
            name=f"gguf_{name}",
            weight_format=name,
            claims=claims_modules(name),
            modules=modules_in(name),
            heads=True,
            implementation=f"llmk_gguf.method:{implementation}",
            weight_bits=bits,
            examples=f"llmk_gguf.examples:{name.upper()}",
            summary=summary,
        )
        for name, implementation, bits, summary in (
            ("int8_group", "Int8Groups", 10.0, "Q8_0, Q6_K and Q5_K of GGUF, kept in 8 bits with a scale per group"),
            ("int4_group", "Int4Groups", 6.0, "Q4_0 and Q4_K of GGUF, kept in 4 bits with a scale per group"),
        )
    ]


def claims(file: CheckpointFile) -> Verdict:
    """Claims files that start as GGUF files do."""
    from llmk_gguf.header import is_gguf

    try:
        return OK if is_gguf(file) else no("magic", wanted="GGUF", found="other bytes")
    except CheckpointError as error:
        return no("unreadable", found=error.message)


def claims_modules(weight_format: str) -> Callable[[Checkpoint], Verdict]:
    """Claims files with modules that are kept in a format."""

    def claims(checkpoint: Checkpoint) -> Verdict:
        config = checkpoint.quantization
        if config.get("quant_method") != METHOD:
            return no("quant_method", wanted=METHOD, found=config.get("quant_method"))
        modules = config.get("modules")
        if not isinstance(modules, dict) or weight_format not in modules.values():
            return no("modules", wanted=weight_format, found="none")
        return OK

    return claims


def modules_in(weight_format: str) -> Callable[[Checkpoint], ReadsModule]:
    """Those modules."""

    def modules(checkpoint: Checkpoint) -> ReadsModule:
        formats = checkpoint.quantization["modules"]
        return lambda module: OK if formats.get(module) == weight_format else None

    return modules

"""The plugin module: the specs of this distribution. It imports no torch."""

from __future__ import annotations

import re

from pydantic import BaseModel

from llmk.api import (
    FIRST_FIELDS,
    OK,
    Checkpoint,
    CheckpointFile,
    CheckpointFormatSpec,
    KernelSpec,
    LinearQuery,
    ModelSourceSpec,
    Needs,
    QuantizationSpec,
    StatLoggerSpec,
    Tier,
    TokenBand,
    Verdict,
    hookimpl,
    no,
)
from llmk.api.specs import ReadsModule

from . import plover_bitnet_config
from .plover_options import Options

OCI_PREFIX = "oci:"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_OCI = re.compile(
    rf"oci:(?P<repository>{_PART}(?:/{_PART})*)(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{{0,127}}))?"
    r"(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)


@hookimpl
def llmk_config_schema() -> type[BaseModel]:
    """The options."""
    return Options


def is_npz(file: CheckpointFile) -> Verdict:
    """Whether it is a ZIP file whose first member is an array, or a text of a model."""
    with file.open() as stream:
        first = stream.read(512)
    name = first[30 : 30 + int.from_bytes(first[26:28], "little")]
    if first.startswith(b"PK\x03\x04") and name.endswith((b".npy", b"config.json", b"tokenizer.json")):
        return OK
    return no("magic", wanted="a NumPy archive, which starts with an array", found=repr(first[:4]))


@hookimpl
def llmk_checkpoint_formats() -> list[CheckpointFormatSpec]:
    """Formats of checkpoints."""
    return [
        CheckpointFormatSpec(
            id="plover.npz",
            name="npz",
            claims=is_npz,
            implementation="llmk_delta.plover_npz:read",
            examples="llmk_delta.plover_npz_examples:NPZ",
            summary="NumPy archives with a model's arrays, config and tokenizer",
        )
    ]


def parse_oci(reference: str) -> tuple[str, str, str] | None:
    """The repository, the tag, and the digest or ``""``, as registries allow them; ``None`` if it has another form."""
    found = _OCI.fullmatch(reference) if len(reference) < 512 else None
    return found and (found["repository"], found["tag"] or "latest", found["digest"] or "")


def is_oci(reference: str) -> Verdict:
    """Whether it names a model of a registry."""
    if parse_oci(reference):
        return OK
    wanted = f"{OCI_PREFIX}REPOSITORY:TAG or {OCI_PREFIX}REPOSITORY@sha256:DIGEST"
    return no("form", wanted=wanted, found=reference[:100])


@hookimpl
def llmk_model_sources() -> list[ModelSourceSpec]:
    """Sources of models."""
    return [
        ModelSourceSpec(
            id="plover.oci",
            name="oci",
            claims=is_oci,
            implementation="llmk_delta.plover_oci:Registry",
            examples="llmk_delta.plover_oci_examples:filled",
            summary="models of an OCI registry, a layer for each file",
        )
    ]


def bitnet_modules(checkpoint: Checkpoint) -> ReadsModule:
    """Which modules of a checkpoint are packed."""
    return plover_bitnet_config.parse(checkpoint).reads


@hookimpl
def llmk_quantization_methods() -> list[QuantizationSpec]:
    """Quantization methods."""
    return [
        QuantizationSpec(
            id="plover.bitnet",
            name="bitnet",
            weight_format="int4_group",
            claims=plover_bitnet_config.claims,
            modules=bitnet_modules,
            implementation="llmk_delta.plover_bitnet:BitNet",
            weight_bits=4.0,
            examples="llmk_delta.plover_bitnet_examples:BITNET",
            summary="BitNet b1.58, kept in 4 bits with a scale per row",
        )
    ]


def is_int8_channel(query: LinearQuery) -> Verdict:
    """Any shape, of one weight format."""
    if query.weight_format == "int8_channel":
        return OK
    return no("weight_format", wanted=query.weight_format, found="int8_channel")


@hookimpl
def llmk_linear_kernels() -> list[KernelSpec]:
    """Linear kernels."""
    return [
        KernelSpec(
            id="plover.sparse_int8",
            kind="linear",
            implementation="llmk_delta.plover_sparse:sparse_linear",
            prepare="llmk_delta.plover_sparse:prepare",
            layout="plover_input_major",
            tier=Tier.PORTABLE,
            needs=Needs(dtypes=("float32", "bfloat16", "float16")),
            supports=is_int8_channel,
            knows=FIRST_FIELDS | {"lookup"},
            bands=(TokenBand(1, 9),),
            opt_in="it pays only where most inputs are 0, as behind a squared ReLU",
            summary="GEMMs that skip the weights of inputs that are 0",
        )
    ]


@hookimpl
def llmk_stat_loggers() -> list[StatLoggerSpec]:
    """Stat loggers."""
    return [
        StatLoggerSpec(
            id="plover.influx",
            name="influx",
            implementation="llmk_delta.plover_influx:Influx",
            examples="llmk_delta.plover_influx_examples:INFLUX",
            summary="all metrics to InfluxDB, by HTTP",
        )
    ]

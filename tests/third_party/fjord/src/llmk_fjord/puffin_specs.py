"""The entry point ``puffin``: a source of models, a format of checkpoints, a stat logger and a launcher.

Importing this module imports neither torch nor any of the implementations.
"""

from __future__ import annotations

import re
import sys

from pydantic import BaseModel, Field, field_validator

from llmk.api import (
    OK,
    CheckpointFile,
    CheckpointFormatSpec,
    LauncherSpec,
    LaunchQuery,
    ModelSourceSpec,
    StatLoggerSpec,
    Verdict,
    hookimpl,
    no,
)

PREFIX = "fjord:"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}", re.ASCII)
REFERENCE = re.compile(rf"{PREFIX}({NAME.pattern})(?:@({NAME.pattern}))?", re.ASCII)
MAGIC = b"FJPACK1\n"


class Options(BaseModel, extra="forbid"):
    """``[plugin.puffin]``."""

    store: str = Field("/srv/fjord", min_length=1, description="Folder of the store: models/ and blobs/.")
    pack_header_mib: int = Field(64, ge=1, le=512, description="Largest header of a pack that is read, in MiB.")
    influx_file: str = Field("llmk.influx", min_length=1, description="File to which line protocol is added.")
    influx_bytes: int = Field(64 << 20, ge=256, description="Size at which a new file is begun.")
    influx_files: int = Field(4, ge=1, le=1000, description="Files that are kept, with the one being written.")
    influx_buckets: bool = Field(True, description="Whether the buckets of histograms are written.")
    influx_model: str = Field(
        "", description="The tag model of all lines; empty: the name that the model is served as."
    )
    slots: list[str] = Field([], description="Names of this machine's devices; none: they are not reserved.")
    slots_folder: str = Field("", description="Folder of the lock files of devices; empty: of this user in /tmp.")
    slots_prefix: list[str] = Field([], description="What each rank's command begins with; {index} and {device}.")

    @field_validator("slots")
    @classmethod
    def _are_distinct(cls, names: list[str]) -> list[str]:
        if len(set(names)) < len(names) or not all(NAME.fullmatch(name) for name in names):
            raise ValueError("names of devices must be distinct, and of letters, digits, dots, dashes and underscores")
        return names


def claims_reference(reference: str) -> Verdict:
    """Whether ``reference`` is ``fjord:NAME`` or ``fjord:NAME@VERSION``."""
    if REFERENCE.fullmatch(reference):
        return OK
    return no("form", wanted=f"{PREFIX}NAME or {PREFIX}NAME@VERSION", found=ascii(reference[:100]))


def claims_pack(file: CheckpointFile) -> Verdict:
    """Whether a file begins as a pack does."""
    with file.open() as stream:
        first = stream.read(len(MAGIC))
    return OK if first == MAGIC else no("magic", wanted=ascii(MAGIC), found=ascii(first))


def supports_launch(query: LaunchQuery) -> Verdict:
    """Any platform on a system with POSIX process groups and locks of files."""
    return OK if sys.platform != "win32" else no("system", wanted="POSIX", found=sys.platform)


@hookimpl
def llmk_config_schema() -> type[BaseModel]:
    """The options."""
    return Options


@hookimpl
def llmk_model_sources() -> list[ModelSourceSpec]:
    """Sources of models."""
    return [
        ModelSourceSpec(
            id="puffin.store",
            name="puffin-store",
            claims=claims_reference,
            implementation="llmk_fjord.puffin_store:Store",
            examples="llmk_fjord.puffin_examples:store",
            summary="versions of models in a content-addressed folder, such as a share of the network",
        )
    ]


@hookimpl
def llmk_checkpoint_formats() -> list[CheckpointFormatSpec]:
    """Formats of checkpoints."""
    return [
        CheckpointFormatSpec(
            id="puffin.pack",
            name="puffin-pack",
            claims=claims_pack,
            implementation="llmk_fjord.puffin_pack:read_pack",
            examples="llmk_fjord.puffin_examples:PACK",
            summary="one file with a header and tensors, plain or compressed by shuffled zlib",
        )
    ]


@hookimpl
def llmk_stat_loggers() -> list[StatLoggerSpec]:
    """Stat loggers."""
    return [
        StatLoggerSpec(
            id="puffin.influx",
            name="puffin-influx",
            implementation="llmk_fjord.puffin_influx:Influx",
            examples="llmk_fjord.puffin_examples:INFLUX",
            summary="InfluxDB's line protocol in a ring of files",
        )
    ]


@hookimpl
def llmk_launchers() -> list[LauncherSpec]:
    """Launchers."""
    return [
        LauncherSpec(
            id="puffin.slots",
            name="puffin-slots",
            implementation="llmk_fjord.puffin_slots:Slots",
            supports=supports_launch,
            examples="llmk_fjord.puffin_examples:SLOTS",
            summary="ranks on devices of this machine, which several engines share by lock files",
        )
    ]

"""The section ``[plugin.meadow]`` of the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from llmk.api import ConfigError


class Options(BaseModel, extra="forbid", frozen=True):
    """What the plugins of this wheel can be told."""

    order: int = Field(4, ge=1, le=16, description="Paths: tokens of the longest context.")
    share: float = Field(0.5, ge=0, le=1, description="Paths: how often a draft must have followed its context.")
    longest: int = Field(8, ge=1, le=64, description="Loops: tokens of the longest loop.")
    proof: int = Field(3, ge=1, le=64, description="Loops: how many tokens must have repeated.")
    barn: str = Field("", description="Barn: the folder of archives.")
    ledger: str = Field("ledger.jsonl", min_length=1, description="Ledger: its file.")
    ledger_bytes: int = Field(1 << 20, ge=1, description="Ledger: the most bytes of a file.")
    ledger_files: int = Field(3, ge=1, le=99, description="Ledger: how many files there are, with the newest.")
    command: list[str] = Field(["nice", "-n", "5"], description="Nicely: what stands before Python's arguments.")
    places: int = Field(64, ge=1, description="Nicely: the most ranks on this machine.")


def read(section: Mapping[str, Any]) -> Options:
    """The options of a section that was not validated. Raises ConfigError."""
    try:
        return Options.model_validate(section)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, ("plugin.meadow", *first["loc"])))
        raise ConfigError(
            f"{where}: {first['msg']}", hint=f"its options are {', '.join(Options.model_fields)}"
        ) from None

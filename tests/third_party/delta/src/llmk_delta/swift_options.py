"""``[plugin.swift]``: the options of this distribution."""

from __future__ import annotations

import os
from typing import Self

from pydantic import BaseModel, Field, model_validator


class Options(BaseModel, extra="forbid"):
    """Each plugin reads its own of these."""

    lease_folder: str = Field(
        f"/tmp/llmk-leases-{os.getuid()}", description="Where engines that share devices lease them, by locks on files."
    )
    islands: list[list[str]] = Field(
        [], description="Names of devices that may be leased, by which of them are close; empty: all, as one island."
    )
    backoff_longest: int = Field(4, ge=1, le=32, description="Tokens of the longest context that drafts are made of.")
    backoff_shortest: int = Field(2, ge=1, le=32, description="Tokens of the shortest one.")
    backoff_share: float = Field(
        0.5, ge=0.0, le=1.0, description="The least share of a context's followers that one must have to be drafted."
    )
    period_span: int = Field(16, ge=1, le=256, description="How many of the last tokens are compared, for a period.")
    period_longest: int = Field(256, ge=1, le=4096, description="Tokens of the longest period.")
    period_least: int = Field(8, ge=1, le=256, description="How many of the compared tokens must agree.")

    @model_validator(mode="after")
    def _are_in_order(self) -> Self:
        if self.backoff_shortest > self.backoff_longest:
            raise ValueError(f"backoff_shortest is {self.backoff_shortest}, backoff_longest {self.backoff_longest}")
        if self.period_least > self.period_span:
            raise ValueError(f"period_least is {self.period_least}, period_span {self.period_span}")
        return self

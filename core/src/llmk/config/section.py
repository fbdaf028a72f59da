"""The base of all sections of the configuration, and the types of their values."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Size = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Timeout = Annotated[float, Field(gt=0)]


class Section(BaseModel):
    """Base of all sections: frozen, and without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, defer_build=True)

"""The section ``[plugin.plover]`` of the configuration, which the model source and the stat logger share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from llmk.api import ConfigError


class Options(BaseModel, extra="forbid", strict=True):
    """``[plugin.plover]``."""

    registry: str = Field(
        "http://localhost:5000", pattern=r"^https?://[^/?#\s]+$", description="Address of the OCI registry."
    )
    influx_url: str = Field(
        "http://localhost:8086", pattern=r"^https?://[^/?#\s]+(/[^?#\s]*)?$", description="Address of InfluxDB."
    )
    influx_org: str = Field("llmk", min_length=1, description="Organization in InfluxDB.")
    influx_bucket: str = Field("llmk", min_length=1, description="Bucket that metrics are written to.")


def parse_options(options: Mapping[str, Any]) -> Options:
    """The options, as the user wrote them. Raises :class:`~llmk.api.ConfigError`, which names what is wrong."""
    try:
        return Options.model_validate(dict(options))
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise ConfigError(
            f"[plugin.plover] can't be used: {wrong}", hint=f"its options are {', '.join(Options.model_fields)}"
        ) from error

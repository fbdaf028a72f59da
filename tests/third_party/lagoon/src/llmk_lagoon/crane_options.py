"""The plugin's section of the configuration, ``[plugin.crane]``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from llmk.api import ConfigError


class Options(BaseModel, extra="forbid"):
    """``[plugin.crane]``."""

    influx_url: str = Field("http://127.0.0.1:8086/", pattern=r"^https?://[^/?#]+(/[^?#]*)?$", description="InfluxDB.")
    influx_database: str = Field("llmk", min_length=1, description="Database that metrics are written to.")
    influx_token: str = Field("", pattern=r"^[!-~]*$", description="Token of InfluxDB; empty: it needs none.")
    influx_batch: int = Field(5000, ge=1, le=100_000, description="Most lines of one request.")
    s3_endpoint: str = Field(
        "https://s3.amazonaws.com", pattern=r"^https?://[^/?#]+/?$", description="The service that holds the buckets."
    )
    s3_region: str = Field("us-east-1", pattern=r"^[a-z0-9-]+$", description="Region that requests are signed for.")


def parsed(section: Mapping[str, Any]) -> Options:
    """The section as the user wrote it, validated. Raises ConfigError."""
    try:
        return Options.model_validate(dict(section))
    except ValidationError as error:
        found = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise ConfigError(
            f"[plugin.crane] has {found}", hint=f"its options are {', '.join(Options.model_fields)}"
        ) from error

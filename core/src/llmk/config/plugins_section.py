"""The section of plugins."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from llmk.config.section import Section


class PluginsSection(Section):
    """Which plugins are used."""

    only: tuple[str, ...] = Field(
        default=(), description="Load only these plugins (entry-point or distribution names)."
    )
    disable: tuple[str, ...] = Field(default=(), description="Leave these plugins out.")
    require: tuple[str, ...] = Field(default=(), description="Fail unless these plugins are active.")
    allow_overrides: tuple[str, ...] = Field(default=(), description="Ids that another wheel may replace.")
    trust: tuple[str, ...] = Field(
        default=(),
        description="Distributions whose kernels may be chosen by tier, as if the platform vouched for them.",
    )
    import_seconds: Annotated[float, Field(gt=0)] = Field(
        default=60.0,
        description="Time limit of importing a plugin's specs, and of each hook, after which the plugin is left out as "
        "broken. Importing an implementation, which may import torch, may take ten times as long.",
    )

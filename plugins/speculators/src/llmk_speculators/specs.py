"""The plugin module of ``llmk-speculators``: its speculators, and their section of the configuration."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import BaseModel, Field, model_validator

from llmk.api import SpeculatorSpec, hookimpl

Length = Annotated[int, Field(ge=1, le=32)]


class Options(BaseModel, extra="forbid"):
    """``[plugin.speculators]``."""

    min_match: Length = Field(
        2,
        description="Fewest last tokens of a request that must have occurred before, for drafts to be made.",
    )
    max_match: Length = Field(
        4, description="Most last tokens that prompt lookup compares; the suffix tree has no such limit."
    )
    max_spec_factor: Annotated[float, Field(gt=0)] = Field(
        2.0, description="Most drafts of the suffix tree, as a multiple of the number of tokens that occurred before."
    )

    @model_validator(mode="after")
    def _in_order(self) -> Options:
        if self.min_match > self.max_match:
            raise ValueError(f"min_match = {self.min_match} is greater than max_match = {self.max_match}")
        return self


_EXAMPLES = "llmk_speculators.examples:OPTIONS"


@hookimpl
def llmk_config_schema() -> type[BaseModel]:
    """Lengths of matches."""
    return Options


@hookimpl
def llmk_speculators() -> Iterable[SpeculatorSpec]:
    """Speculators that need no second model: they draft what followed the last tokens earlier in the request, or by the
    model's own heads."""
    return [
        SpeculatorSpec(
            id="speculators.mtp",
            name="mtp",
            implementation="llmk_speculators.mtp:MultiTokenPrediction",
            heads=True,
            examples=_EXAMPLES,
            summary="what the model's own heads for further tokens predict, inside of the step",
        ),
        SpeculatorSpec(
            id="speculators.prompt_lookup",
            name="prompt_lookup",
            implementation="llmk_speculators.lookup:PromptLookup",
            examples="llmk_speculators.examples:LOOKUP",
            summary="what followed the latest occurrence of the request's last tokens, on the host",
        ),
        SpeculatorSpec(
            id="speculators.prompt_lookup_device",
            name="prompt_lookup_device",
            implementation="llmk_speculators.device_lookup:DevicePromptLookup",
            on_device=True,
            examples="llmk_speculators.examples:DEVICE_LOOKUP",
            summary="the same, on the device inside of the step, so that two steps stay in flight",
        ),
        SpeculatorSpec(
            id="speculators.suffix_tree",
            name="suffix_tree",
            implementation="llmk_speculators.suffix_tree:SuffixTreeSpeculator",
            examples=_EXAMPLES,
            summary="what followed the longest suffix of the request that occurred before, on the host",
        ),
    ]

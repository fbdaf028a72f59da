"""The plugin module of ``llmk-hub``: the source. Imports neither torch nor ``huggingface_hub``."""

from __future__ import annotations

from pydantic import BaseModel

from llmk.api import OK, ModelSourceSpec, Verdict, hookimpl, no
from llmk_hub.options import Options
from llmk_hub.reference import FORM, parse


@hookimpl
def llmk_config_schema() -> type[BaseModel]:
    """The options."""
    return Options


@hookimpl
def llmk_model_sources() -> list[ModelSourceSpec]:
    """The hub."""
    return [
        ModelSourceSpec(
            id="hub.hub",
            name="hub",
            claims=claims,
            implementation="llmk_hub.hub:Hub",
            examples="llmk_hub.examples:served",
            summary="models of the Hugging Face hub by name, in the cache that its other tools share",
        )
    ]


def claims(reference: str) -> Verdict:
    """Claims what has the form of a repository's name."""
    return OK if parse(reference) else no("form", wanted=FORM, found=reference)

"""The plugin module: this distribution's specs, and its section of the configuration. It imports no torch."""

from __future__ import annotations

from pydantic import BaseModel, Field

from llmk.api import OK, ModelSourceSpec, Verdict, hookimpl, no

PREFIX = "acme:"


class Options(BaseModel, extra="forbid"):
    """``[plugin.acme]``."""

    shelf: str = Field("/srv/models", min_length=1, description="Folder of models, such as a share of the network.")


def claims(name: str) -> Verdict:
    """Looks at the text alone, and at nothing that takes time."""
    found = name.removeprefix(PREFIX)
    ours = name.startswith(PREFIX) and found.isprintable() and found.replace("-", "").replace("_", "").isalnum()
    return OK if ours else no("form", wanted=f"{PREFIX}NAME", found=name[:100])


@hookimpl
def llmk_config_schema() -> type[BaseModel]:
    """The options."""
    return Options


@hookimpl
def llmk_model_sources() -> list[ModelSourceSpec]:
    """Sources of models."""
    return [
        ModelSourceSpec(
            id="acme.shelf",
            name="acme-shelf",
            claims=claims,
            implementation="llmk_acme.shelf:Shelf",
            examples="llmk_acme.examples:filled",
            summary="models of a shared folder, copied to this machine",
        )
    ]

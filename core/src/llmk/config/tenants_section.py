"""The section of keys with quotas."""

from __future__ import annotations

from pydantic import Field

from llmk.config.section import Section


class TenantsSection(Section):
    """API keys with roles and quotas, which `llmk keys` manages. Needs llmk-core[storage]."""

    database: str = Field(
        default="",
        description="Where keys are. 'sqlite': llmk/keys.sqlite under $XDG_STATE_HOME or ~/.local/state. Else a URL "
        "(SQLAlchemy's). Empty: there are no such keys.",
    )

"""The section of a server of the Model Context Protocol."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from llmk.config.section import Section, Timeout


class McpServer(Section):
    """A server of the Model Context Protocol, whose tools requests may use."""

    url: Annotated[str, Field(pattern=r"^https?://")] = Field(description="Its endpoint for streamable HTTP.")
    headers: dict[str, str] = Field(default_factory=dict, description="Headers that it gets, such as a key.")
    client_headers: tuple[str, ...] = Field(
        default=("authorization",), description="Headers that requests may add. Those of the operator win."
    )
    seconds: Timeout = Field(default=30.0, description="Time limit of a call.")

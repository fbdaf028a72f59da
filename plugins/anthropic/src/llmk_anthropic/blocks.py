"""Content blocks of requests (https://docs.anthropic.com/en/api/messages)."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from llmk.api.http.bodies import Entries, Fields, fault
from llmk_anthropic.cacheable import Cacheable
from llmk_anthropic.tools import ToolAdditionBlock, ToolRemovalBlock

_VISION = "needs a vision model"
_SERVER = "is of a tool that runs at Anthropic"
_REFUSED = {
    "image": _VISION,
    "browser_state": _VISION,
    "container_upload": "needs a container, which there is not",
    "server_tool_use": _SERVER,
    "mcp_tool_use": _SERVER,
    "mcp_tool_result": _SERVER,
}
"""Types of blocks that can't be read, with the reason."""


class TextBlock(Cacheable):
    """Text."""

    taken: ClassVar = frozenset({"citations", "parsed_output"})

    type: Literal["text"]
    text: str


class TextSource(Fields):
    """The content of a document that is plain text."""

    taken: ClassVar = frozenset({"media_type"})

    type: Literal["text"]
    data: str


def _check_source(data: Any) -> Any:
    if isinstance(data, dict) and (kind := data.get("type")) not in ("text", None):
        raise fault("a document with a source of type {kind} needs a vision model; 'text' can be read", kind=repr(kind))
    return data


class DocumentBlock(Cacheable):
    """A document of plain text."""

    taken: ClassVar = frozenset({"citations"})

    type: Literal["document"]
    source: Annotated[TextSource, BeforeValidator(_check_source)]
    title: str = ""
    context: str = ""

    @property
    def text(self) -> str:
        """The document as text, after its title and context."""
        return "\n".join(part for part in (self.title, self.context, self.source.data) if part)


class SearchResultBlock(Cacheable):
    """A result of the client's own search."""

    taken: ClassVar = frozenset({"citations"})

    type: Literal["search_result"]
    source: str
    title: str
    content: Entries[TextBlock]

    @property
    def text(self) -> str:
        """The result as text, after its title and source."""
        return "\n".join((self.title, self.source, *(block.text for block in self.content)))


class ToolReferenceBlock(Cacheable):
    """A tool that the client's search for tools has found. All tools are in the prompt from the start."""

    type: Literal["tool_reference"]
    tool_name: str

    @property
    def text(self) -> str:
        """A sentence that names the tool."""
        return f"The tool {self.tool_name} is available."


class ThinkingBlock(Fields):
    """Thinking of an earlier response. The signature may be of any server."""

    type: Literal["thinking"]
    thinking: str
    signature: str = ""


class RedactedThinkingBlock(Fields):
    """Encrypted thinking of another server, which can't be read."""

    type: Literal["redacted_thinking"]
    data: str


class ToolUseBlock(Cacheable):
    """A tool call of an earlier response."""

    taken: ClassVar = frozenset({"caller", "toolset_name"})

    type: Literal["tool_use"]
    id: Annotated[str, Field(min_length=1)]
    name: Annotated[str, Field(min_length=1)]
    input: dict[str, Any]


def _check_type(data: Any) -> Any:
    kind = data.get("type") if isinstance(data, dict) else None
    if isinstance(kind, str) and (why := _REFUSED.get(kind) or (_SERVER if kind.endswith("_tool_result") else "")):
        raise fault("the block of type '{kind}' can't be read: it {why}", kind=kind[:64], why=why)
    return data


ResultPart = Annotated[
    Annotated[TextBlock | DocumentBlock | SearchResultBlock | ToolReferenceBlock, Field(discriminator="type")],
    BeforeValidator(_check_type),
]


class ToolResultBlock(Cacheable):
    """The result of a tool call."""

    taken: ClassVar = frozenset({"toolset_name"})

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | Entries[ResultPart] = ""
    is_error: bool = False


Block = Annotated[
    Annotated[
        TextBlock
        | DocumentBlock
        | SearchResultBlock
        | ThinkingBlock
        | RedactedThinkingBlock
        | ToolUseBlock
        | ToolResultBlock
        | ToolAdditionBlock
        | ToolRemovalBlock,
        Field(discriminator="type"),
    ],
    BeforeValidator(_check_type),
]

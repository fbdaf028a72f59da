"""Tools and tool choices of the Responses API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from llmk.serve.protocol.base import Entries, Refused, RequestModel, invalid, unsupported
from llmk.serve.protocol.chat import NO_CUSTOM_TOOLS
from llmk.serve.responses.mcp_client import McpTarget

HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,100}$")]
HeaderValue = Annotated[str, Field(pattern=r"^[\x20-\x7e]{0,8192}$")]
_HOSTED = "llmk runs no hosted tools; offer functions instead"
REFUSED_TOOLS: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "apply_patch",
            "code_interpreter",
            "computer",
            "computer_use",
            "computer_use_preview",
            "file_search",
            "image_generation",
            "local_shell",
            "programmatic_tool_calling",
            "shell",
            "tool_search",
            "web_search",
            "web_search_2025_08_26",
            "web_search_preview",
            "web_search_preview_2025_03_11",
        ),
        _HOSTED,
    ),
    "custom": NO_CUSTOM_TOOLS,
    "mcp": "which tools of MCP servers may be called is chosen by 'allowed_tools' of their entry in 'tools'",
    "namespace": "functions have no namespaces; offer each function as a tool",
}
"""Known types of tools that can't be offered or chosen, and why."""


class FunctionTool(RequestModel):
    """A function that the model may call. Without ``strict``, arguments that violate ``parameters`` are possible."""

    refused: ClassVar = {
        "allowed_callers": Refused("only the model calls functions", (["direct"],)),
        "async": Refused("functions are called synchronously", (False,)),
        "defer_loading": Refused("all functions are part of the prompt", (False,)),
        "output_schema": Refused("the output of functions is not checked"),
    }

    type: Literal["function"]
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False

    @property
    def chat(self) -> dict[str, Any]:
        """The tool of a chat completion."""
        function = self.model_dump(exclude={"type"}, exclude_none=True)
        return {"type": "function", "function": function}

    @property
    def shown(self) -> dict[str, Any]:
        """The tool in a response."""
        return self.model_dump()


class ToolNames(RequestModel):
    """Some of a server's tools."""

    refused: ClassVar = {"read_only": Refused("tools are chosen by their names")}

    tool_names: Entries[str] = Field(default_factory=list)


class ApprovalFilter(RequestModel):
    """Which calls need the client's approval. A tool that is in neither list does."""

    always: ToolNames | None = None
    never: ToolNames | None = None


class McpTool(RequestModel):
    """The tools of an MCP server, which the server of the configuration with this label or URL runs."""

    refused: ClassVar = {
        "allowed_callers": Refused("only the model calls tools", (["direct"],)),
        "connector_id": Refused("there are no connectors; name a server of the configuration (server.mcp)"),
        "defer_loading": Refused("all tools are part of the prompt", (False,)),
        "tunnel_id": Refused("there are no tunnels; name a server of the configuration (server.mcp)"),
    }

    type: Literal["mcp"]
    server_label: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    server_url: Annotated[str, Field(max_length=2048)] | None = None
    server_description: str | None = None
    authorization: Annotated[str, Field(pattern=r"^[\x21-\x7e]{1,8192}$")] | None = None
    headers: dict[HeaderName, HeaderValue] | None = None
    allowed_tools: Entries[str] | ToolNames | None = None
    require_approval: Literal["always", "never"] | ApprovalFilter | None = None

    @property
    def shown(self) -> dict[str, Any]:
        """The tool in a response, without what authorizes calls."""
        return {**self.model_dump(exclude={"authorization", "headers"}), "headers": None}

    @property
    def target(self) -> McpTarget:
        """The server that is meant."""
        headers = {name.lower(): value for name, value in (self.headers or {}).items()}
        headers |= {"authorization": f"Bearer {self.authorization}"} if self.authorization else {}
        return McpTarget(self.server_label, self.server_url or "", tuple(headers.items()))

    def allows(self, name: str) -> bool:
        """Whether a tool may be called."""
        names = self.allowed_tools.tool_names if isinstance(self.allowed_tools, ToolNames) else self.allowed_tools
        return names is None or name in names

    def asks(self, name: str) -> bool:
        """Whether a call needs the client's approval."""
        if not isinstance(self.require_approval, ApprovalFilter):
            return self.require_approval != "never"
        never, always = self.require_approval.never, self.require_approval.always
        return never is None or name not in never.tool_names or (always is not None and name in always.tool_names)


class ChosenFunction(RequestModel):
    """A ``tool_choice`` that names a function."""

    type: Literal["function"]
    name: Annotated[str, Field(min_length=1)]


class AllowedTools(RequestModel):
    """A ``tool_choice`` of some of the tools."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[Entries[ChosenFunction], Field(min_length=1)]


def _check_type(known: tuple[str, ...]) -> BeforeValidator:
    def check(data: Any) -> Any:
        kind = data.get("type") if isinstance(data, dict) else None
        if isinstance(kind, str) and kind in REFUSED_TOOLS and kind not in known:
            raise unsupported("type", f"{REFUSED_TOOLS[kind]}; {kind!r} is not available")
        if isinstance(data, dict) and kind not in known:
            raise invalid("type", f"unknown type {kind!r:.80}; known are {', '.join(known)}")
        return data

    return BeforeValidator(check)


ToolItem = Annotated[Annotated[FunctionTool | McpTool, Field(discriminator="type")], _check_type(("function", "mcp"))]
"""An entry of ``tools``."""
ToolChoice = (
    Literal["none", "auto", "required"]
    | Annotated[
        Annotated[ChosenFunction | AllowedTools, Field(discriminator="type")],
        _check_type(("function", "allowed_tools")),
    ]
)


def chat_choice(choice: str | ChosenFunction | AllowedTools) -> Any:
    """The ``tool_choice`` of a chat completion."""
    if isinstance(choice, str):
        return choice
    if isinstance(choice, ChosenFunction):
        return _named(choice)
    allowed = {"mode": choice.mode, "tools": [_named(tool) for tool in choice.tools]}
    return {"type": "allowed_tools", "allowed_tools": allowed}


def _named(choice: ChosenFunction) -> dict[str, Any]:
    return {"type": "function", "function": {"name": choice.name}}

"""Tools and tool choices of the Responses API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from llmk.serve.protocol.base import Entries, Refused, RequestModel, invalid, unsupported

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
            "mcp",
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
    "custom": "custom tools, whose input is a text, can't be called; offer a function with a text parameter",
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
        if isinstance(kind, str) and kind in REFUSED_TOOLS:
            raise unsupported("type", f"{REFUSED_TOOLS[kind]}; {kind!r} is not available")
        if isinstance(data, dict) and kind not in known:
            raise invalid("type", f"unknown type {kind!r:.80}; known are {', '.join(known)}")
        return data

    return BeforeValidator(check)


ToolItem = Annotated[FunctionTool, _check_type(("function",))]
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

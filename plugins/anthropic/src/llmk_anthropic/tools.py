"""Tools of requests (https://docs.anthropic.com/en/api/messages), and how messages change them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from llmk.api.http.bodies import Entries, Fields, fault
from llmk_anthropic.cacheable import Cacheable


class Tool(Cacheable):
    """A tool of the client."""

    taken: ClassVar = frozenset({"defer_loading", "eager_input_streaming", "input_examples"})

    type: Literal["custom"] = "custom"
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]
    description: str = ""
    input_schema: dict[str, Any]
    strict: bool = False
    allowed_callers: Entries[str] = Field(default=["direct"])

    @model_validator(mode="before")
    @classmethod
    def _check_type(cls, data: Any) -> Any:
        if isinstance(data, dict) and (kind := data.get("type")) not in ("custom", None):
            message = "the tool {name} of type {kind} is Anthropic's own and not available; give it as a custom one"
            raise fault(message, name=repr(data.get("name"))[:80], kind=repr(kind)[:80])
        return data

    @model_validator(mode="after")
    def _check_callers(self) -> Self:
        if "direct" not in self.allowed_callers:
            raise fault("only the model itself can call tools; 'allowed_callers' must have 'direct'")
        return self


class ToolChoice(Fields):
    """Which tools the model may or must call."""

    type: Literal["auto", "any", "tool", "none"]
    name: str = ""
    disable_parallel_tool_use: bool = False

    @model_validator(mode="after")
    def _check_name(self) -> Self:
        if bool(self.name) != (self.type == "tool"):
            raise fault("a tool choice of type 'tool', and no other, needs 'name'")
        return self


class ToolReference(Fields):
    """A tool by its name."""

    type: Literal["tool_reference"]
    name: str


class ToolDefinition(Fields):
    """A tool that stands in a message."""

    type: Literal["tool_definition"]
    definition: Tool

    @property
    def name(self) -> str:
        """The tool's name."""
        return self.definition.name


class ToolAdditionBlock(Fields):
    """A tool that the model may call from now on. Those in ``tools`` are in the prompt from the start."""

    taken: ClassVar = frozenset({"cache_control"})

    type: Literal["tool_addition"]
    tool: Annotated[ToolReference | ToolDefinition, Field(discriminator="type")]


class ToolRemovalBlock(Fields):
    """A tool that the model may no longer call."""

    taken: ClassVar = frozenset({"cache_control"})

    type: Literal["tool_removal"]
    tool: ToolReference

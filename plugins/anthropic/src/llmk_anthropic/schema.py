"""Bodies of ``/v1/messages`` and ``/v1/messages/count_tokens`` (https://docs.anthropic.com/en/api/messages)."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from llmk.api.http.bodies import Entries, Fields, fault
from llmk_anthropic.blocks import Block, Cacheable, TextBlock

_COMMON_TAKEN = frozenset(
    {
        *("anthropic_beta", "anthropic_version", "betas", "billing_policy", "compaction"),
        *("context_management", "diagnostics", "fallback_credit_token", "fallbacks", "inference_geo", "metadata"),
        *("service_tier", "speed", "user_profile_id", "workspace_id"),
    }
)
_COMMON_REFUSED = {
    "container": "there are no containers",
    "mcp_servers": "the client must call MCP servers itself, and offer their tools in 'tools'",
    "thread": "no conversation is stored; send all messages",
}


class Message(Fields):
    """A message of the conversation so far."""

    taken: ClassVar = frozenset({"id", "model", "stop_reason", "stop_sequence", "stop_details", "type", "usage"})

    role: Literal["user", "assistant", "system"]
    content: str | Entries[Block]


class Tool(Cacheable):
    """A tool of the client."""

    taken: ClassVar = frozenset({"defer_loading", "eager_input_streaming", "input_examples"})

    type: Literal["custom"] = "custom"
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]
    description: str = ""
    input_schema: dict[str, Any]
    strict: bool = False
    allowed_callers: list[str] = Field(default=["direct"])

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


class Thinking(Fields):
    """Whether the model thinks before it answers."""

    taken: ClassVar = frozenset({"block_binding"})

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int, Field(ge=1)] | None = None
    display: Literal["summarized", "omitted", "updates"] = "summarized"


class Format(Fields):
    """The format of the response's text: JSON that follows a schema."""

    type: Literal["json_schema"]
    json_schema: dict[str, Any] = Field(alias="schema")


class OutputConfig(Fields):
    """Effort, and the format of the text."""

    taken: ClassVar = frozenset({"task_budget"})

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: Format | None = None


class CountRequest(Cacheable):
    """The body of ``/v1/messages/count_tokens``."""

    taken: ClassVar = _COMMON_TAKEN
    refused: ClassVar = _COMMON_REFUSED

    model: str
    messages: Annotated[Entries[Message], Field(min_length=1)]
    system: str | Entries[TextBlock] = ""
    tools: Entries[Tool] = Field(default=[])
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig = OutputConfig()
    output_format: Format | None = None
    """The older name of ``output_config.format``."""

    @model_validator(mode="after")
    def _check_choice(self) -> Self:
        names = [tool.name for tool in self.tools]
        if self.tool_choice is None or self.tool_choice.type in ("auto", "none"):
            return self
        if not names:
            raise fault("'tool_choice' of type '{type}' needs 'tools'", type=self.tool_choice.type)
        if self.tool_choice.name and self.tool_choice.name not in names:
            message = "'tool_choice' names the tool {name}, which is not in 'tools'"
            raise fault(message, name=repr(self.tool_choice.name)[:80])
        return self


class MessagesRequest(CountRequest):
    """The body of ``/v1/messages``."""

    max_tokens: Annotated[int, Field(ge=1)]
    stream: bool = False
    stop_sequences: Entries[Annotated[str, Field(min_length=1)]] = Field(default=[])
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    unenforceable: Literal["refuse", "warn"] | None = None
    """llmk's own: what happens to schemas that can't be enforced."""

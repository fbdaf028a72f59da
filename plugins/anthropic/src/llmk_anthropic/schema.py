"""Bodies of ``/v1/messages`` and ``/v1/messages/count_tokens`` (https://docs.anthropic.com/en/api/messages)."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from llmk.api.http.bodies import Entries, Fields, fault
from llmk_anthropic.blocks import Block, TextBlock
from llmk_anthropic.cacheable import Cacheable
from llmk_anthropic.tools import Tool, ToolChoice

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
}


Effort = Literal["low", "medium", "high", "xhigh", "max"]


class TurnConfig(Fields):
    """How much effort the turn is worth."""

    effort: Effort | None = None


class Message(Fields):
    """A message of the conversation so far. Those of the system may be for one turn only, and may change the tools."""

    taken: ClassVar = frozenset({"id", "model", "stop_reason", "stop_sequence", "stop_details", "type", "usage"})

    role: Literal["user", "assistant", "system"]
    content: str | Entries[Block] = ""
    clear_at: Literal["next_user_message", "never"] = "never"
    output_config: TurnConfig | None = None

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        if self.role == "system":
            return self
        for name in ("clear_at", "output_config"):
            if name in self.model_fields_set:
                raise fault("a message of role {role} can't have '{name}'", role=self.role, name=name)
        if "content" not in self.model_fields_set:
            raise fault("a message of role {role} needs 'content'", role=self.role)
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

    effort: Effort | None = None
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
    thread: Any = None

    @field_validator("thread", mode="before")
    @classmethod
    def _check_thread(cls, thread: Any) -> Any:
        raise fault("no conversation is stored; send all messages")


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

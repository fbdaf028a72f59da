"""``/v1/chat/completions``: messages, tools and switches."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, NoReturn, Self

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from llmk.serve.protocol import tool_schema
from llmk.serve.protocol.base import Entries, Refused, RequestModel, invalid, unsupported
from llmk.serve.protocol.sampling import COMMON_REFUSED, SamplingFields

ROLE_FIELDS = {
    "tool_calls": "assistant",
    "reasoning_content": "assistant",
    "reasoning": "assistant",
    "tool_call_id": "tool",
}
_ECHOED = frozenset({"cache_control", "id", "prompt_cache_breakpoint", "provider_specific_fields"})
"""Fields that client libraries add to messages they received, and send back."""
NO_CUSTOM_TOOLS = "custom tools, whose input is a text, can't be called; offer a function with a text parameter"
_CUSTOM = Refused(NO_CUSTOM_TOOLS)


class TextPart(RequestModel):
    """A text part of a message's content. A refusal that the assistant wrote is text too; no other kind is
    supported."""

    taken: ClassVar = frozenset({"annotations", *_ECHOED})

    type: str
    text: str

    @model_validator(mode="before")
    @classmethod
    def _check_type(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("type") == "refusal" and "text" not in data:
            return {("text" if name == "refusal" else name): value for name, value in data.items()}
        if isinstance(data, dict) and data.get("type") != "text":
            raise unsupported("type", f"parts of type {data.get('type')!r} can't be read; only text can")
        return data


class FunctionCall(RequestModel):
    """A call that the assistant made."""

    taken: ClassVar = frozenset({"parsed_arguments", "provider_specific_fields"})

    name: Annotated[str, Field(min_length=1)]
    arguments: str = ""

    @field_validator("arguments")
    @classmethod
    def _check_arguments(cls, value: str) -> str:
        try:
            json.loads(value or "{}", parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise PydanticCustomError("invalid_value", "not JSON: {why}", {"why": str(error)}) from None
        return value


class ToolCall(RequestModel):
    """An entry of an assistant message's ``tool_calls``."""

    refused: ClassVar = {"custom": _CUSTOM}
    taken: ClassVar = frozenset({"cache_control", "extra_content", "provider_specific_fields"})

    id: str = ""
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = None
    """Present if a client sends back a streamed call. It is ignored; the order of the list is used."""


class Message(RequestModel):
    """A message of the conversation so far."""

    refused: ClassVar = {"audio": Refused("audio can't be read"), "function_call": Refused("use 'tool_calls'")}
    taken: ClassVar = frozenset(
        {"annotations", "parsed", "reasoning_details", "reasoning_items", "refusal", "thinking_blocks", *_ECHOED}
    )

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Entries[TextPart] | None = None
    name: str | None = None
    """The author, or the tool of a result: for templates that show it."""
    tool_calls: Entries[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    """Another name of ``reasoning_content``."""

    @model_validator(mode="after")
    def _check_role(self) -> Self:
        for name, role in ROLE_FIELDS.items():
            if getattr(self, name) not in (None, []) and self.role != role:
                message = f"'{name}' belongs to messages of role {role}, not {self.role}"
                raise PydanticCustomError("invalid_value", "{message}", {"field": name, "message": message})
        if None not in (self.reasoning, self.reasoning_content) and self.reasoning != self.reasoning_content:
            raise invalid("reasoning", "'reasoning' and 'reasoning_content' differ; send one of them")
        if self.content is None and self.role != "assistant":  # an answer may have been cut before its first token
            raise PydanticCustomError("missing", "a message of this role needs content", {"field": "content"})
        return self

    @property
    def thought(self) -> str | None:
        """The assistant's reasoning, from either field."""
        return self.reasoning if self.reasoning_content is None else self.reasoning_content

    @property
    def text(self) -> str | None:
        """The content as one text, with each part on a separate line."""
        return "\n".join(part.text for part in self.content) if isinstance(self.content, list) else self.content


class Function(RequestModel):
    """A function that the model may call."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False
    """Whether ``parameters`` are enforced where the model calls tools as it likes. Where no grammar can do that,
    arguments that violate them are reported."""

    @field_validator("parameters")
    @classmethod
    def _check_schema(cls, value: dict[str, Any]) -> dict[str, Any]:
        if (found := tool_schema.fault(value)) is not None:
            where, why = found
            place = {"where": f" at '{where[1:]}'" if where else "", "why": why}
            raise PydanticCustomError("invalid_value", "not a JSON schema{where}: {why}", place)
        return value


class Tool(RequestModel):
    """An entry of ``tools``."""

    refused: ClassVar = {"custom": _CUSTOM}
    taken: ClassVar = frozenset({"cache_control"})
    hints: ClassVar = dict.fromkeys(
        Function.model_fields, 'a tool is {"type": "function", "function": {"name": ..., "parameters": ...}}'
    )

    type: Literal["function"]
    function: Function


class NamedFunction(RequestModel):
    """The name of a function."""

    name: str


class NamedTool(RequestModel):
    """A tool that must be called, or one of those that may be."""

    type: Literal["function"]
    function: NamedFunction

    @model_validator(mode="before")
    @classmethod
    def _check_type(cls, data: Any) -> Any:
        """First, so that the fields of an :class:`AllowedTools` are not taken for unknown ones of this."""
        if isinstance(data, dict) and data.get("type") != "function":
            raise invalid("type", "'function' or 'allowed_tools' is known")
        return data


class AllowedChoice(RequestModel):
    """Tools that may, or must, be called."""

    mode: Literal["auto", "required"]
    tools: Entries[NamedTool]


class AllowedTools(RequestModel):
    """A ``tool_choice`` that restricts ``tools``."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedChoice


def check_names(tools: Sequence[Tool]) -> None:
    """Raises if two of a request's tools have the same name."""
    seen: set[str] = set()
    for at, tool in enumerate(tools):
        if tool.function.name in seen:
            raise invalid(f"tools[{at}].function.name", f"two tools are called '{tool.function.name}'")
        seen.add(tool.function.name)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


class ChatRequest(SamplingFields):
    """The body of a chat completion."""

    refused: ClassVar = {
        **COMMON_REFUSED,
        "audio": Refused("the model writes text only"),
        "modalities": Refused("the model writes text only", (["text"],)),
        "functions": Refused("use 'tools'", ([],)),
        "function_call": Refused("use 'tool_choice'", ("none",)),
        "web_search_options": Refused("there is no web search"),
        "moderation": Refused("there is no moderation"),
    }
    hints: ClassVar = dict.fromkeys(("prompt", "input"), 'a chat has \'messages\': [{"role": "user", "content": ...}]')

    messages: Annotated[Entries[Message], Field(min_length=1)]
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: Entries[Tool] = Field(default_factory=list)
    tool_choice: Literal["auto", "none", "required"] | NamedTool | AllowedTools = "auto"
    parallel_tool_calls: bool = True
    """False: the response ends after its first tool call."""
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    """For chat templates with such a variable, or with a switch, which only ``none`` turns off. Without effect on
    others."""
    verbosity: Literal["low", "medium", "high"] | None = None
    """For chat templates with such a variable. Without effect on others."""
    prediction: dict[str, Any] | None = None
    """Without effect: it would make the answer faster, not different."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise PydanticCustomError("invalid_value", "'top_logprobs' needs 'logprobs'", {"field": "top_logprobs"})
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            message = "'max_tokens' and 'max_completion_tokens' differ; set one of them"
            raise PydanticCustomError("invalid_value", message, {"field": "max_completion_tokens"})
        if self.continue_final_message and (self.add_generation_prompt or self.messages[-1].role != "assistant"):
            message = "'continue_final_message' needs an assistant message at the end, and no 'add_generation_prompt'"
            raise PydanticCustomError("invalid_value", message, {"field": "continue_final_message"})
        check_names(self.tools)
        self._check_choice()
        return self

    def _check_choice(self) -> None:
        """Whether the tools that ``tool_choice`` names are there."""
        names = [tool.function.name for tool in self.tools]
        known = ", ".join(names) or "none"
        for name in self._chosen or ():
            if name not in names:
                raise invalid("tool_choice", f"there is no tool '{name[:64]}' (tools: {known})")
        if self.must_call and not names:
            raise invalid("tool_choice", "'tools' is empty, so none can be called")

    @property
    def _chosen(self) -> list[str] | None:
        """The names that ``tool_choice`` has; ``None``: all tools."""
        if isinstance(self.tool_choice, AllowedTools):
            return [tool.function.name for tool in self.tool_choice.allowed_tools.tools]
        return [self.tool_choice.function.name] if isinstance(self.tool_choice, NamedTool) else None

    @property
    def must_call(self) -> bool:
        """Whether the answer must be a tool call."""
        if isinstance(self.tool_choice, AllowedTools):
            return self.tool_choice.allowed_tools.mode == "required"
        return isinstance(self.tool_choice, NamedTool) or self.tool_choice == "required"

    @property
    def num_logprobs(self) -> int | None:
        """The engine's ``logprobs``."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def token_limit(self) -> int | None:
        """The maximum number of tokens to generate."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def offered_tools(self) -> list[dict[str, Any]]:
        """The tools that are rendered in the prompt: those that may be called. With ``tool_choice: none``, there are
        none."""
        if self.tool_choice == "none":
            return []
        chosen = self._chosen
        return shown([tool for tool in self.tools if chosen is None or tool.function.name in chosen])

    @property
    def strict_schemas(self) -> dict[str, dict[str, Any]]:
        """The schemas of the arguments of strict tools, by name."""
        return {tool.function.name: tool.function.parameters or {} for tool in self.tools if tool.function.strict}


def shown(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Tools as they are rendered in the prompt, without ``strict``, which the model need not know."""
    return [tool.model_dump(exclude_none=True, exclude={"function": {"strict"}}) for tool in tools]

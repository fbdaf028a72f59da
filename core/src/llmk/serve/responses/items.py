"""Items of the Responses API: messages, reasoning, function calls and their outputs, as clients send them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from llmk.serve.protocol.base import Entries, Refused, RequestModel, invalid, unsupported

Status = Literal["in_progress", "completed", "incomplete"]
ItemId = Annotated[str, Field(min_length=1, max_length=128)]

_HOSTED = "llmk runs no hosted tools; send function calls and their outputs"
_NO_COMPACTION = "llmk does not compact conversations"
REFUSED_ITEMS: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "apply_patch_call",
            "apply_patch_call_output",
            "code_interpreter_call",
            "computer_call",
            "computer_call_output",
            "file_search_call",
            "image_generation_call",
            "local_shell_call",
            "local_shell_call_output",
            "program",
            "program_output",
            "shell_call",
            "shell_call_output",
            "tool_search_call",
            "tool_search_output",
            "web_search_call",
        ),
        _HOSTED,
    ),
    **dict.fromkeys(("custom_tool_call", "custom_tool_call_output"), "custom tools can't be called; use functions"),
    **dict.fromkeys(("compaction", "compaction_trigger"), _NO_COMPACTION),
    "additional_tools": "send all tools in 'tools'",
    "configuration_update": "send the configuration as fields of the request",
}
"""Known types of items that can't be part of a conversation, and why."""
REFUSED_PARTS: Mapping[str, str] = {
    "input_image": "images can't be read",
    "computer_screenshot": "images can't be read",
    "input_file": "files can't be read",
    "input_audio": "audio can't be read",
}
_SYNCHRONOUS = Refused("functions are called synchronously", (False,))
_DIRECT: tuple[Any, ...] = ({"type": "direct"},)


class ContentPart(RequestModel):
    """A part of a message's content, or of a function's output: a text, or the refusal of a model."""

    taken: ClassVar = frozenset({"annotations", "logprobs", "prompt_cache_breakpoint"})

    type: Literal["input_text", "output_text", "text", "refusal"]
    text: str = ""
    refusal: str = ""

    @model_validator(mode="before")
    @classmethod
    def _check_type(cls, data: Any) -> Any:
        kind = data.get("type") if isinstance(data, dict) else None
        if isinstance(kind, str) and kind in REFUSED_PARTS:
            raise unsupported("type", f"{REFUSED_PARTS[kind]}; parts of type {kind!r} can't be sent")
        field = "refusal" if kind == "refusal" else "text"
        if isinstance(data, dict) and not isinstance(data.get(field), str):
            raise invalid(field, f"a part of this type has a text in '{field}'")
        return data

    @property
    def plain(self) -> str:
        """The text or refusal."""
        return self.refusal if self.type == "refusal" else self.text


def joined(content: str | list[ContentPart]) -> str:
    """The text of a content."""
    return content if isinstance(content, str) else "\n".join(part.plain for part in content)


class MessageItem(RequestModel):
    """A message. An assistant's has the parts that a response had."""

    taken: ClassVar = frozenset({"created_by", "phase"})

    type: Literal["message"] = "message"
    role: Literal["user", "system", "developer", "assistant"]
    content: str | Entries[ContentPart]
    id: ItemId | None = None
    status: Status | None = None


class ReasoningText(RequestModel):
    """A part of a reasoning item."""

    type: Literal["reasoning_text", "summary_text", "text"]
    text: str


class ReasoningItem(RequestModel):
    """A model's reasoning, as a response had it. The text is in ``content``, or encoded in ``encrypted_content``."""

    type: Literal["reasoning"]
    summary: Entries[ReasoningText] = Field(default_factory=list)
    content: Entries[ReasoningText] | None = None
    encrypted_content: str | None = None
    id: ItemId | None = None
    status: Status | None = None


class FunctionCallItem(RequestModel):
    """A call of a function, as a response had it. The arguments need not be JSON, since a model wrote them."""

    refused: ClassVar = {
        "async": _SYNCHRONOUS,
        "async_": _SYNCHRONOUS,  # as OpenAI's client sends it back
        "caller": Refused("only the model calls functions", _DIRECT),
        "namespace": Refused("functions have no namespaces"),
    }
    taken: ClassVar = frozenset({"created_by", "parsed_arguments"})

    type: Literal["function_call"]
    call_id: ItemId
    name: Annotated[str, Field(min_length=1)]
    arguments: str
    id: ItemId | None = None
    status: Status | None = None


class FunctionOutputItem(RequestModel):
    """What a function returned."""

    refused: ClassVar = {
        "caller": Refused("only the model calls functions", _DIRECT),
        "namespace": Refused("functions have no namespaces"),
    }
    taken: ClassVar = frozenset({"created_by", "name"})

    type: Literal["function_call_output"]
    call_id: ItemId
    output: str | Entries[ContentPart]
    id: ItemId | None = None
    status: Status | None = None


class McpListItem(RequestModel):
    """The tools of an MCP server, as a response had them. They are listed again."""

    type: Literal["mcp_list_tools"]
    server_label: str
    tools: Entries[dict[str, Any]]
    error: str | None = None
    id: ItemId | None = None
    status: Status | None = None


class McpCallItem(RequestModel):
    """A call of a tool of an MCP server, with what it returned."""

    type: Literal["mcp_call"]
    server_label: str
    name: Annotated[str, Field(min_length=1)]
    arguments: str
    output: str | None = None
    error: dict[str, Any] | str | None = None
    approval_request_id: ItemId | None = None
    id: ItemId | None = None
    status: Status | Literal["calling", "failed"] | None = None

    @property
    def result(self) -> str:
        """What the model gets to know."""
        error = self.error if self.error is None or isinstance(self.error, str) else error_text(self.error)
        return (self.output or "") if error is None else f"Error: {error}"


class McpApprovalRequestItem(RequestModel):
    """A call that needs the client's approval."""

    type: Literal["mcp_approval_request"]
    id: ItemId
    server_label: str
    name: Annotated[str, Field(min_length=1)]
    arguments: str
    status: Status | None = None


class McpApprovalResponseItem(RequestModel):
    """The client's answer to it."""

    type: Literal["mcp_approval_response"]
    approval_request_id: ItemId
    approve: bool
    reason: str | None = None
    id: ItemId | None = None
    status: Status | None = None


def error_text(error: Mapping[str, Any]) -> str:
    """The message of a call's error."""
    content = error.get("content")
    texts = [part.get("text", "") for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    return str(error.get("message") or "\n".join(map(str, texts)))


class ItemReference(RequestModel):
    """A stored item, by its id."""

    type: Literal["item_reference"] = "item_reference"
    id: ItemId


def _kind(data: Any) -> str | None:
    """The type of an item; messages and references need not have one."""
    if not isinstance(data, dict):
        return getattr(data, "type", None)
    if data.get("type") is not None:
        return data["type"] if isinstance(data["type"], str) else None
    return "item_reference" if set(data) <= {"type", "id"} else "message"


_MODELS: Mapping[str, type[RequestModel]] = {
    "message": MessageItem,
    "reasoning": ReasoningItem,
    "function_call": FunctionCallItem,
    "function_call_output": FunctionOutputItem,
    "item_reference": ItemReference,
    "mcp_list_tools": McpListItem,
    "mcp_call": McpCallItem,
    "mcp_approval_request": McpApprovalRequestItem,
    "mcp_approval_response": McpApprovalResponseItem,
}
ITEM_TYPES = tuple(_MODELS)


def _check_kind(data: Any) -> Any:
    kind = _kind(data)
    if kind is not None and kind in REFUSED_ITEMS:
        raise unsupported("type", f"{REFUSED_ITEMS[kind]}; items of type {kind!r} can't be sent")
    if isinstance(data, dict) and kind not in _MODELS:
        raise invalid("type", f"unknown type of an item: {kind!r:.80}; types are {', '.join(_MODELS)}")
    return data


InputItem = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionOutputItem, Tag("function_call_output")]
    | Annotated[ItemReference, Tag("item_reference")]
    | Annotated[McpListItem, Tag("mcp_list_tools")]
    | Annotated[McpCallItem, Tag("mcp_call")]
    | Annotated[McpApprovalRequestItem, Tag("mcp_approval_request")]
    | Annotated[McpApprovalResponseItem, Tag("mcp_approval_response")],
    Discriminator(_kind),
    BeforeValidator(_check_kind),
]
"""An item of a request's ``input``."""
PlainItem = MessageItem | ReasoningItem | FunctionCallItem | FunctionOutputItem
"""An item that is a part of messages."""
McpItem = McpListItem | McpCallItem | McpApprovalRequestItem | McpApprovalResponseItem
Item = PlainItem | McpItem
"""An item, after references were resolved."""

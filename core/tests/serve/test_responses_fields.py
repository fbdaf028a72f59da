"""Every field and type of the newest OpenAI SDK's requests is decided: honoured, or refused by name."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any

import pytest
from openai.types import responses, shared_params
from openai.types.conversations import conversation_create_params, conversation_update_params, item_create_params
from openai.types.responses import (
    response_create_params,
    response_function_tool_call_output_item,
    response_input_content_param,
    response_input_item_param,
    response_output_message_param,
    response_output_text_param,
    response_reasoning_item_param,
    tool_choice_types_param,
)
from pydantic import BaseModel, ValidationError

from llmk.serve.protocol.base import RequestModel
from llmk.serve.responses import items, request, tools

PAIRS: list[tuple[Any, type[RequestModel]]] = [
    (response_create_params.ResponseCreateParamsNonStreaming, request.ResponseRequest),
    (response_create_params.ResponseCreateParamsStreaming, request.ResponseRequest),
    (responses.input_token_count_params.InputTokenCountParams, request.InputTokensRequest),
    (response_create_params.StreamOptions, request.ResponseStreamOptions),
    (shared_params.Reasoning, request.Reasoning),
    (responses.ResponseTextConfigParam, request.TextConfig),
    (responses.ResponseFormatTextJSONSchemaConfigParam, request.TextFormat),
    (responses.FunctionToolParam, tools.FunctionTool),
    (responses.tool_param.Mcp, tools.McpTool),
    (response_input_item_param.McpListTools, items.McpListItem),
    (response_input_item_param.McpCall, items.McpCallItem),
    (response_input_item_param.McpApprovalRequest, items.McpApprovalRequestItem),
    (response_input_item_param.McpApprovalResponse, items.McpApprovalResponseItem),
    (responses.ToolChoiceFunctionParam, tools.ChosenFunction),
    (responses.ToolChoiceAllowedParam, tools.AllowedTools),
    (responses.EasyInputMessageParam, items.MessageItem),
    (response_input_item_param.Message, items.MessageItem),
    (response_output_message_param.ResponseOutputMessageParam, items.MessageItem),
    (responses.ResponseInputTextParam, items.ContentPart),
    (response_output_text_param.ResponseOutputTextParam, items.ContentPart),
    (responses.ResponseOutputRefusalParam, items.ContentPart),
    (response_reasoning_item_param.ResponseReasoningItemParam, items.ReasoningItem),
    (response_reasoning_item_param.Content, items.ReasoningText),
    (response_reasoning_item_param.Summary, items.ReasoningText),
    (responses.ResponseFunctionToolCallParam, items.FunctionCallItem),
    (response_input_item_param.FunctionCallOutput, items.FunctionOutputItem),
    (responses.ResponseOutputMessage, items.MessageItem),
    (responses.ResponseReasoningItem, items.ReasoningItem),
    (responses.ResponseFunctionToolCall, items.FunctionCallItem),
    (response_function_tool_call_output_item.ResponseFunctionToolCallOutputItem, items.FunctionOutputItem),
    (response_input_item_param.ItemReference, items.ItemReference),
    (conversation_create_params.ConversationCreateParams, request.ConversationRequest),
    (conversation_update_params.ConversationUpdateParams, request.ConversationUpdate),
    (item_create_params.ItemCreateParams, request.ItemsRequest),
]
MCP: dict[str, Any] = {"type": "mcp", "server_label": "x"}
IN_QUERIES: dict[type[RequestModel], set[str]] = {request.ItemsRequest: {"include"}}
ALIASES = {"async_": "async", "schema": "json_schema"}


@pytest.mark.parametrize(("params", "model"), PAIRS, ids=lambda part: part.__name__)
def test_every_field_is_decided(params: Any, model: type[RequestModel]) -> None:
    fields = params.model_fields if issubclass(params, BaseModel) else typing.get_type_hints(params)
    names = {ALIASES.get(name, name) for name in fields}
    known = {*model.model_fields, *model.refused, *model.taken, *IN_QUERIES.get(model, ())}
    assert sorted(names - known) == []


def types(union: Any) -> Iterator[str]:
    """The values of ``type`` of the members of a union."""
    for member in typing.get_args(union):
        yield from literals(typing.get_type_hints(member)["type"])


def literals(hint: Any) -> Iterator[str]:
    if typing.get_origin(hint) is typing.Literal:
        yield from typing.get_args(hint)
        return
    for inner in typing.get_args(hint):
        yield from literals(inner)


def test_every_type_is_decided() -> None:
    found = set(types(response_input_item_param.ResponseInputItemParam))
    assert found == {*items.ITEM_TYPES, *items.REFUSED_ITEMS}
    offered, chosen = set(types(responses.ToolParam)), set(literals(tool_choice_types_param.ToolChoiceTypesParam))
    assert {*offered, *chosen} <= {"function", "mcp", *tools.REFUSED_TOOLS}
    parts = set(types(response_input_content_param.ResponseInputContentParam))
    assert parts <= {"input_text", *items.REFUSED_PARTS}
    choices = [hint for hint in typing.get_args(response_create_params.ToolChoice) if hasattr(hint, "__annotations__")]
    named = {name for hint in choices for name in literals(typing.get_type_hints(hint)["type"])}
    assert named <= {"function", "allowed_tools", *tools.REFUSED_TOOLS}
    included = set(literals(responses.ResponseIncludable))
    assert included == {request.LOGPROBS, request.ENCRYPTED, *request.HOSTED_INCLUDES}


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"truncation": "auto"}, "a conversation that is too long is refused"),
        ({"prompt": {"id": "pmpt_1"}}, "there are no stored prompts"),
        ({"context_management": [{"type": "compaction"}]}, "does not compact"),
        ({"background_options": {"completion_window": "8h"}}, "as soon as possible"),
        ({"moderation": {"model": "x"}}, "there is no moderation"),
        ({"stream_options": {"include_obfuscation": True}}, "events are not padded"),
        ({"reasoning": {"summary": "detailed"}}, "not summarized"),
        ({"background": True, "store": False}, "a background response is stored"),
        ({"previous_response_id": "resp_1", "conversation": "conv_1"}, "exclude each other"),
        ({"input": None}, "give 'input'"),
        ({"inputs": "x"}, "did you mean 'input'?"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "images can't be read"),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]}, "files can't be read"),
        ({"input": [{"type": "computer_call"}]}, "'computer_call' can't be sent"),
        ({"input": [{"type": "poem"}]}, "unknown type of an item: 'poem'"),
        ({"tools": [{"type": "web_search"}]}, "llmk runs no hosted tools; offer functions instead; 'web_search'"),
        ({"tools": [{**MCP, "connector_id": "connector_gmail"}]}, "there are no connectors"),
        ({"tools": [{**MCP, "allowed_tools": {"read_only": True}}]}, "tools are chosen by their names"),
        ({"tools": [{**MCP, "authorization": "a b"}]}, "should match pattern"),
        ({"tools": [{**MCP, "headers": {"x": "a\r\nhost: b"}}]}, "should match pattern"),
        ({"tools": [MCP], "tool_choice": {"type": "mcp", "server_label": "x"}}, "chosen by 'allowed_tools'"),
        ({"tools": [{"type": "custom", "name": "x"}]}, "custom tools"),
        ({"tools": [{"type": "hammer"}]}, "unknown type 'hammer'"),
        ({"tool_choice": {"type": "file_search"}}, "'file_search' is not available"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "has a 'schema'"),
        ({"text": {"format": {"type": "json_object", "schema": {}}}}, "has no 'schema'"),
        ({"include": ["everything"]}, "Input should be"),
        ({"max_output_tokens": 0}, "greater than or equal to 1"),
    ],
)
def test_what_is_refused_says_why(change: dict[str, Any], part: str) -> None:
    with pytest.raises(ValidationError) as caught:
        request.ResponseRequest.model_validate({"input": "hi", **change})
    assert part in str(caught.value)


def test_what_changes_nothing_is_taken() -> None:
    neutral = {
        "background_options": {"completion_window": "soonest"},
        "context_management": None,
        "include": ["file_search_call.results"],
        "max_tool_calls": 3,
        "reasoning": {"summary": "auto", "effort": None},
        "service_tier": "auto",
        "stream": True,
        "stream_options": {"include_obfuscation": False},
        "truncation": "disabled",
    }
    assert request.ResponseRequest.model_validate({"input": "hi", **neutral}).stream

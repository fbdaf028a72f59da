"""Every field that the newest ``anthropic`` client sends is decided: honoured, without effect, or refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import pytest
from anthropic import types
from anthropic.types import beta, message_count_tokens_params, message_create_params
from anthropic.types.beta import message_count_tokens_params as beta_count_tokens_params
from anthropic.types.beta import message_create_params as beta_create_params

from llmk.api import RequestError
from llmk.api.http.bodies import Fields
from llmk_anthropic import blocks, schema, tools
from llmk_anthropic.messages import Messages

REQUESTS: list[tuple[type, type[Fields]]] = [
    (message_create_params.MessageCreateParamsBase, schema.MessagesRequest),
    (beta_create_params.MessageCreateParamsBase, schema.MessagesRequest),
    (message_count_tokens_params.MessageCountTokensParams, schema.CountRequest),
    (beta_count_tokens_params.MessageCountTokensParams, schema.CountRequest),
    (types.OutputConfigParam, schema.OutputConfig),
    (beta.BetaOutputConfigParam, schema.OutputConfig),
    (types.JSONOutputFormatParam, schema.Format),
    (types.ToolParam, tools.Tool),
    (beta.BetaToolParam, tools.Tool),
    *((each, schema.Thinking) for each in get_args(types.ThinkingConfigParam)),
    *((each, schema.Thinking) for each in get_args(beta.BetaThinkingConfigParam)),
    *((each, tools.ToolChoice) for each in get_args(types.ToolChoiceParam)),
    *((each, schema.Message) for each in get_args(types.MessageParam)),
    *((each, schema.Message) for each in get_args(beta.BetaMessageParam)),
    (beta.BetaSystemMessageOutputConfigParam, schema.TurnConfig),
    (beta.BetaToolChangeToolReferenceParam, tools.ToolReference),
    (beta.BetaToolChangeToolDefinitionParam, tools.ToolDefinition),
]
READ: dict[str, type[Fields]] = {
    "text": blocks.TextBlock,
    "document": blocks.DocumentBlock,
    "search_result": blocks.SearchResultBlock,
    "tool_reference": blocks.ToolReferenceBlock,
    "thinking": blocks.ThinkingBlock,
    "redacted_thinking": blocks.RedactedThinkingBlock,
    "tool_use": blocks.ToolUseBlock,
    "tool_result": blocks.ToolResultBlock,
    "tool_addition": tools.ToolAdditionBlock,
    "tool_removal": tools.ToolRemovalBlock,
}


def known(model: type[Fields]) -> set[str]:
    return {field.alias or name for name, field in model.model_fields.items()} | model.taken | set(model.refused)


@pytest.mark.parametrize(("sent", "model"), REQUESTS, ids=lambda each: each.__name__)
def test_every_field_is_known(sent: type, model: type[Fields]) -> None:
    assert set(get_type_hints(sent)) <= known(model)


def kinds() -> Iterator[tuple[str, type]]:
    for union in (types.ContentBlockParam, beta.BetaContentBlockParam):
        for block in get_args(union):
            if hasattr(block, "__required_keys__"):  # a beta block may also be one of a response, which is no TypedDict
                (kind,) = get_args(get_type_hints(block)["type"])
                yield kind, block


@pytest.mark.parametrize(("kind", "block"), list(kinds()))
def test_every_block_is_read_or_refused(kind: str, block: type) -> None:
    if (model := READ.get(kind)) is not None:
        assert set(get_type_hints(block)) <= known(model)
        return
    messages: Any = [{"role": "user", "content": [{"type": kind}]}]
    with pytest.raises(RequestError, match=f"'{kind}'") as caught:
        Messages().translate({"model": "m", "max_tokens": 1, "messages": messages}, {})
    assert caught.value.param == "messages.0.content.0"

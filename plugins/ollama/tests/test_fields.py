"""Every field that the newest ``ollama`` client can send is decided: honoured, without effect, or refused by name."""

from __future__ import annotations

import ollama
import pydantic
import pytest
from ollama import _types as types

from llmk.api.http.bodies import Fields
from llmk_ollama import schema

REQUESTS: list[tuple[type[pydantic.BaseModel], type[Fields]]] = [
    (types.ChatRequest, schema.ChatRequest),
    (types.GenerateRequest, schema.GenerateRequest),
    (types.EmbedRequest, schema.EmbedRequest),
    (types.EmbeddingsRequest, schema.EmbeddingsRequest),
    (types.ShowRequest, schema.ShowRequest),
    (types.PullRequest, schema.PullRequest),
    (ollama.Options, schema.Options),
    (ollama.Message, schema.Message),
    (ollama.Message.ToolCall, schema.ToolCall),
    (ollama.Message.ToolCall.Function, schema.Function),
    (ollama.Tool, schema.Tool),
    (ollama.Tool.Function, schema.ToolFunction),
]


@pytest.mark.parametrize(("sent", "model"), REQUESTS, ids=lambda each: each.__name__)
def test_every_field_is_known(sent: type[pydantic.BaseModel], model: type[Fields]) -> None:
    assert set(sent.model_fields) <= set(model.model_fields) | model.taken | set(model.refused)

"""Errors of bodies that routes of plugins parse name the field, also where the name itself is wrong."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import pytest
from pydantic import Field

from llmk.api import RequestError
from llmk.api.http.bodies import Entries, Fields, parse


class Text(Fields):
    refused: ClassVar = {"cache": "nothing is cached"}

    type: Literal["text"]
    text: str


class Image(Fields):
    type: Literal["image"]
    url: str


Block = Annotated[Text | Image, Field(discriminator="type")]


class Message(Fields):
    role: str
    content: str | Entries[Block] = ""
    options: dict[str, Text] = Field(default_factory=dict)


class Chat(Fields):
    taken: ClassVar = frozenset({"user"})
    refused: ClassVar = {"echo": "prompts are not repeated"}

    messages: Entries[Message]
    limit: int = Field(1, alias="maxTokens")


def message(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user"}, {"role": "user", **fields}]}


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({**message(), "limit": 2}, "limit", "unknown field 'limit'"),
        ({**message(), "maxToken": 2}, "maxToken", "unknown field 'maxToken'; did you mean 'maxTokens'?"),
        ({**message(), "echo": True}, "echo", "'echo' is not supported: prompts are not repeated"),
        ({**message(), "x" * 100: True}, "x" * 64, f"unknown field '{'x' * 64}'"),
        (message(rule=1), "messages.1.rule", "messages.1: unknown field 'rule'; did you mean 'role'?"),
        (
            message(content=[{"type": "text", "text": "", "cache": "all"}]),
            "messages.1.content.0.cache",
            "messages.1.content.0: 'cache' is not supported: nothing is cached",
        ),
        (
            message(content=[{"type": "image", "url": "", "size": 1}]),
            "messages.1.content.0.size",
            "messages.1.content.0: unknown field 'size'",
        ),
        (
            message(options={"first": {"type": "text", "text": "", "x": 1}}),
            "messages.1.options.first.x",
            "messages.1.options.first: unknown field 'x'",
        ),
        ({**message(), "maxTokens": "2"}, "maxTokens", "maxTokens: Input should be a valid integer"),
        (message(content=[{"type": "image"}]), "messages.1.content.0.url", "messages.1.content.0.url: Field required"),
        ({}, "messages", "messages: Field required"),
        ([], None, "Input should be a valid dictionary or instance of Chat"),
    ],
)
def test_an_error_names_its_field(body: Any, param: str | None, said: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse(Chat, body)
    assert (caught.value.param, str(caught.value)) == (param, said)


def test_what_has_no_effect_is_left_out() -> None:
    chat = parse(Chat, {**message(), "user": "me", "echo": False, "maxTokens": None})
    assert chat.model_dump() == {"messages": [each.model_dump() for each in chat.messages], "limit": 1}

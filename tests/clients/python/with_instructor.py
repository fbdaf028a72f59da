"""``instructor``, in each of its modes for OpenAI's API."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import instructor
import openai
import pydantic
from instructor.core import IncompleteOutputException as Incomplete
from suite import HELLO, KEY, MODEL, PICK, URL, refused, run

REFUSED = "Error code: 400"
CHAT: Any = {"model": MODEL, "messages": [{"role": "user", "content": HELLO}], "max_tokens": 300, "temperature": 0}


class Pick(pydantic.BaseModel):
    """Picks a number."""

    number: Literal[1, 2, 3]
    sure: bool


def client(mode: str) -> Any:
    return instructor.from_openai(openai.OpenAI(base_url=URL, api_key=KEY), mode=instructor.Mode[mode])


def check_defaults() -> None:
    made = instructor.from_openai(openai.OpenAI(base_url=URL, api_key=KEY))
    assert isinstance(made.chat.completions.create(**CHAT, response_model=Pick), Pick)


def check_provider() -> None:
    made: Any = instructor.from_provider(f"openai/{MODEL}", base_url=URL, api_key=KEY)
    assert isinstance(made.create(messages=CHAT["messages"], max_tokens=300, response_model=Pick), Pick)


def check_modes_that_are_enforced() -> None:
    for mode in ("TOOLS", "TOOLS_STRICT", "JSON_SCHEMA"):
        picked, raw = client(mode).chat.completions.create_with_completion(**CHAT, response_model=Pick)
        assert isinstance(picked, Pick), mode
        assert raw.usage.total_tokens == raw.usage.prompt_tokens + raw.usage.completion_tokens


def check_modes_whose_schema_is_in_the_prompt_only() -> None:
    """A small model does not follow it, so that the request's own fields enforce what a larger one would write."""
    schema = {"response_format": {"type": "json_schema", "json_schema": {"name": "pick", "schema": PICK}}}
    block = {
        "structured_outputs": {"regex": r"Here it is:\n```json\n\{\"number\": [123], \"sure\": (true|false)\}\n```"}
    }
    for mode, body in (("JSON", schema), ("MD_JSON", block)):
        made = client(mode).chat.completions.create(**CHAT, response_model=Pick, extra_body=body)
        assert isinstance(made, Pick), mode


def check_json_objects() -> None:
    """Without a schema the server enforces an object of any kind, of which the client sees the start here."""
    short = {**CHAT, "max_tokens": 8, "response_model": Pick, "max_retries": 0}
    refused(lambda: client("JSON").chat.completions.create(**short), Incomplete)


def check_responses() -> None:
    made = instructor.from_openai(openai.OpenAI(base_url=URL, api_key=KEY), mode=instructor.Mode.RESPONSES_TOOLS)
    options: Any = {"model": MODEL, "input": HELLO, "max_output_tokens": 300, "response_model": Pick}
    assert isinstance(made.responses.create(**options), Pick)
    partial = list(made.responses.create_partial(**options))
    assert Pick.model_validate(partial[-1].model_dump())


def check_retries_send_the_error_back() -> None:
    class Never(pydantic.BaseModel):
        """No value is valid."""

        sure: bool

        @pydantic.field_validator("sure")
        @classmethod
        def refuse(cls, value: bool) -> bool:
            raise ValueError("not that")

    options = {**CHAT, "response_model": Never, "max_retries": 2}
    for mode in ("TOOLS", "JSON_SCHEMA"):
        error: Any = refused(lambda mode=mode: client(mode).chat.completions.create(**options), Exception)
        assert getattr(error, "n_attempts", 2) > 1, error  # an answer may be cut off
        assert REFUSED not in str(error), error


def check_partial_and_iterable() -> None:
    partial = list(client("TOOLS").chat.completions.create_partial(**CHAT, response_model=Pick))
    assert Pick.model_validate(partial[-1].model_dump())
    several = client("TOOLS").chat.completions.create(**{**CHAT, "max_tokens": 60}, response_model=Iterable[Pick])
    assert all(isinstance(pick, Pick) for pick in several)


if __name__ == "__main__":
    run(globals(), "instructor", "openai")

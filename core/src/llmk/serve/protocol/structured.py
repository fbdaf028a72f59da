"""What the content of an answer must match, by each of the fields that clients know for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, StrictBool, model_validator
from pydantic_core import PydanticCustomError

from llmk.serve.protocol.base import Entries, RequestModel

Text = Annotated[str, Field(min_length=1)]


@dataclass(frozen=True)
class StructuredOutputs:
    """``structured_outputs``: one of a regular expression, texts to choose from, a JSON schema, any JSON object, a
    grammar in llguidance's variant of Lark, and structural tags. (A field called ``json`` can't be one of a pydantic
    model.)"""

    __pydantic_config__: ClassVar[ConfigDict] = {"extra": "forbid", "strict": False}

    regex: str | None = None
    choice: Entries[Text] | None = None
    json: dict[str, Any] | StrictBool | str | None = None
    json_object: StrictBool | None = None
    grammar: Text | None = None
    structural_tag: dict[str, Any] | str | None = None


class JsonSchema(RequestModel):
    """The schema of a ``response_format``. It is enforced, ``strict`` or not."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")] = "response"
    description: str | None = None
    schema_: dict[str, Any] = Field(default_factory=dict, alias="schema")
    strict: bool = False


class ResponseFormat(RequestModel):
    """``response_format``."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchema | None = None
    structures: Entries[dict[str, Any]] | None = None
    triggers: Entries[Text] | None = None

    @model_validator(mode="after")
    def _check_schema(self) -> Self:
        if self.type == "json_schema" and self.json_schema is None:
            message = 'this type needs one: {"name": ..., "schema": {...}}'
            raise PydanticCustomError("missing", message, {"field": "json_schema"})
        return self


def given_grammars(fields: Any) -> dict[str, dict[str, Any]]:
    """The grammars of a request by the field that has each, as the ``structured_outputs`` of sampling parameters."""
    found: dict[str, dict[str, Any]] = {}
    if (own := fields.structured_outputs) is not None:
        found["structured_outputs"] = _plain({name: value for name, value in vars(own).items() if value is not None})
    if (form := fields.response_format) is not None and (made := _of_format(form)) is not None:
        found["response_format"] = made
    for name, kind in (("json", "json"), ("regex", "regex"), ("choice", "choice"), ("grammar", "lark")):
        if (value := getattr(fields, f"guided_{name}")) is not None:
            found[f"guided_{name}"] = {kind: value}
    return found


def _of_format(form: ResponseFormat) -> dict[str, Any] | None:
    if form.type == "text":
        return None
    if form.type == "json_object":
        return {"json": {"type": "object"}}
    if form.type == "json_schema":
        return {"json": form.json_schema.schema_ if form.json_schema else None}
    return {"structural_tag": {"structures": form.structures, "triggers": form.triggers}}


def _plain(given: dict[str, Any]) -> dict[str, Any]:
    if given.pop("json_object", None):
        given["json"] = given.get("json", {"type": "object"})
    if "grammar" in given:
        given["lark"] = given.pop("grammar")
    return given

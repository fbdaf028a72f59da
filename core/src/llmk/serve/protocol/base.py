"""The base of all request models. Unknown fields are errors; so are known fields that are not supported."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, FailFast, GetJsonSchemaHandler, ValidationInfo, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

T = TypeVar("T")


class _First(FailFast):
    """``FailFast`` with a hash, which it needs to be part of a union."""

    __hash__ = object.__hash__


Entries = Annotated[list[T], _First()]
"""A list whose validation ends at the first invalid entry, since there may be millions."""
_LONGEST_NAME = 64
"""Limit of an unknown field's name, in characters, for suggesting a similar one."""


class Refused(NamedTuple):
    """A known field that llmk does not support: the reason, and the values that would have no effect."""

    why: str
    neutral: tuple[Any, ...] = ()


class RequestModel(BaseModel):
    """Base of request models.

    ``null`` means that a field is not set. A field in ``refused`` is accepted with a neutral value and is an error with
    others. A field in ``taken``, which clients copy from responses, is accepted and ignored. An unknown field is an
    error with its hint of ``hints``, else the most similar known name, unless the context of the validation is a list,
    which then gets its name.
    Types are strict: ``"5"`` is not a number.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)

    refused: ClassVar[Mapping[str, Refused]] = {}
    taken: ClassVar[frozenset[str]] = frozenset()
    hints: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The schema, with ``null`` for each field that need not be set."""
        schema = handler(core_schema)
        made = handler.resolve_ref_schema(schema)
        needed, properties = made.get("required", ()), made.get("properties", {})
        made["properties"] = {n: field if n in needed else _or_null(field) for n, field in properties.items()}
        return schema

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, data: Any, info: ValidationInfo) -> Any:
        if not isinstance(data, dict) or (data.keys() <= _plain(cls) and None not in data.values()):
            return data
        accepted, fields = {}, _names(cls)
        for name, value in data.items():
            if (value is None and (name in fields or name in cls.refused)) or name in cls.taken:
                continue
            if name not in fields and name not in cls.refused:
                if info.context is None:
                    raise _unknown(name, cls.hints.get(name) or _nearest(name, [*fields, *cls.refused]))
                info.context.append(name)
                continue
            refusal = cls.refused.get(name)
            if refusal is None:
                accepted[name] = value
            elif value not in refusal.neutral:
                raise unsupported(name, refusal.why)
        return accepted


def _or_null(field: dict[str, Any]) -> dict[str, Any]:
    """The schema of a field that may be ``null``, too."""
    if {"type": "null"} in field.get("anyOf", ()):
        return field
    about: dict[str, Any] = {name: field[name] for name in ("default", "title", "description") if name in field}
    return {"anyOf": [{name: value for name, value in field.items() if name not in about}, {"type": "null"}], **about}


@cache
def _names(model: type[BaseModel]) -> frozenset[str]:
    """The fields of a model as requests have them."""
    return frozenset(field.alias or name for name, field in model.model_fields.items())


@cache
def _plain(model: type[RequestModel]) -> frozenset[str]:
    """The names whose values need no look, unless they are ``None``."""
    return _names(model) - model.refused.keys() - model.taken


class Body(RequestModel):
    """Base of complete request bodies. All strings must be valid Unicode, so that they can be encoded."""

    @model_validator(mode="before")
    @classmethod
    def _check_encodable(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            raise PydanticCustomError("body_type", "the body must be a JSON object: {...}")
        try:
            msgspec.json.encode(data)
        except (UnicodeEncodeError, RecursionError) as error:
            raise PydanticCustomError(
                "invalid_json", "the body can't be represented: {cause}", {"cause": str(error)}
            ) from None
        return data


def invalid(field: str, message: str) -> PydanticCustomError:
    """The error for a field with an invalid value of the right type."""
    return PydanticCustomError("invalid_value", "{message}", {"field": field, "message": message})


def unsupported(name: str, why: str) -> PydanticCustomError:
    """The error for a known field whose value is not supported."""
    return PydanticCustomError(
        "unsupported_parameter", "'{field}' is not supported with this value: {why}", {"field": name, "why": why}
    )


def _unknown(name: str, hint: str) -> PydanticCustomError:
    shown = f"; {hint}" if hint else ""
    return PydanticCustomError("unknown_parameter", "unknown field '{field}'{hint}", {"field": name, "hint": shown})


def _nearest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1) if len(name) <= _LONGEST_NAME else []
    return f"did you mean '{near[0]}'?" if near else ""

"""Request bodies as pydantic models whose errors name the field and the reason."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Final, TypeVar

from pydantic import BaseModel, ConfigDict, FailFast, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from llmk.api import RequestError

T = TypeVar("T")
ModelT = TypeVar("ModelT", bound="Fields")


class _First(FailFast):
    """``FailFast`` with a hash, which it needs to be part of a union."""

    __hash__ = object.__hash__


Entries = Annotated[list[T], _First()]
"""A list whose validation ends at the first invalid entry."""
_LONGEST_NAME = 64
"""Limit of an unknown field's name, in characters, for suggesting a similar one."""
_MISNAMED: Final = "field_name"
"""The type of errors that a validator of a whole object raises for one of its fields: pydantic places them at the
object."""


class Fields(BaseModel):
    """An object of a request. ``null`` means that a field is not set; fields in ``taken`` have no effect; those in
    ``refused`` are errors with the given reason, unless they are empty."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    taken: ClassVar[frozenset[str]] = frozenset()
    refused: ClassVar[Mapping[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, data: Any) -> Any:
        if not isinstance(data, dict) or (data.keys() <= _plain(cls) and None not in data.values()):
            return data
        fields = _names(cls)
        known: dict[str, Any] = {}
        for name, value in data.items():
            if name in cls.refused and value:
                raise _misnamed(name, "'{name}' is not supported: {hint}", cls.refused[name])
            if name in fields:
                known |= {} if value is None else {name: value}
            elif name not in cls.taken and name not in cls.refused:
                raise _unknown(name, [*fields, *cls.taken, *cls.refused])
        return known


@cache
def _names(model: type[Fields]) -> frozenset[str]:
    """The fields of a model as requests have them."""
    return frozenset(field.alias or name for name, field in model.model_fields.items())


@cache
def _plain(model: type[Fields]) -> frozenset[str]:
    """The names whose values need no look, unless they are ``None``."""
    return _names(model) - model.refused.keys() - model.taken


def fault(message: str, **values: str) -> PydanticCustomError:
    """An error of a request, for validators; ``values`` fill in the ``message``."""
    return PydanticCustomError("invalid_value", message, values)


def parse(schema: type[ModelT], body: Any) -> ModelT:
    """The request in ``body``. Raises :class:`~llmk.api.RequestError` with an invalid field, whose path is written as
    ``messages.0.content``."""
    try:
        return schema.model_validate(body)
    except ValidationError as error:
        raise _explained(error, body) from None


def _explained(error: ValidationError, body: Any) -> RequestError:
    try:
        errors = error.errors(include_url=False, include_input=False)
    except UnicodeEncodeError:  # it quotes the request
        return RequestError("the body has text that is not valid Unicode")
    # The deepest are in the branches of a union that the client meant.
    depth = max(len(each["loc"]) for each in errors)
    placed = [(_place(each, body), each) for each in errors if len(each["loc"]) == depth]
    place, first = placed[0]
    message = "; ".join(dict.fromkeys(each["msg"] for path, each in placed if path == place))
    fields = [place, first["ctx"]["name"]] if first["type"] == _MISNAMED else [place]
    param = ".".join(field for field in fields if field)
    return RequestError(f"{place}: {message}" if place else message, param=param or None)


def _place(error: ErrorDetails, body: Any) -> str:
    """The path of an error, without the names of a union's branches, which pydantic adds."""
    loc, lacks = error["loc"], error["type"] == "missing"
    path, found = _walk(loc[:-1] if lacks else loc, body)
    if error["type"] == _MISNAMED and not (
        isinstance(found, dict) and any(name[:_LONGEST_NAME] == error["ctx"]["name"] for name in found)
    ):
        path, _ = _walk(loc[:-1], body)  # a branch that is called as one of the fields is
    return ".".join([*path, str(loc[-1])] if lacks else path)


def _walk(loc: tuple[int | str, ...], body: Any) -> tuple[list[str], Any]:
    """The steps that the body has, and what they lead to."""
    path = []
    for step in loc:
        if isinstance(body, dict) and step in body:
            path.append(str(step))
            body = body[step]
        elif isinstance(body, list) and isinstance(step, int):
            path.append(str(step))
            body = body[step] if step < len(body) else None
    return path, body


def _unknown(name: str, known: list[str]) -> PydanticCustomError:
    near = difflib.get_close_matches(name, known, n=1) if len(name) <= _LONGEST_NAME else []
    hint = f"; did you mean '{near[0]}'?" if near else ""
    return _misnamed(name, "unknown field '{name}'{hint}", hint)


def _misnamed(name: str, message: str, hint: str) -> PydanticCustomError:
    """An error of the object that has a field of this name."""
    return PydanticCustomError(_MISNAMED, message, {"name": name[:_LONGEST_NAME], "hint": hint})

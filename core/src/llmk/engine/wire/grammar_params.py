"""The grammar of a request: what its whole output must match."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from msgspec.structs import force_setattr

from llmk.api import GrammarKind, RequestError

PARAM = "structured_outputs"
"""The sampling parameter, and the field of requests."""
_KINDS: tuple[GrammarKind, ...] = ("regex", "choice", "json", "lark")


class GrammarParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What the whole output must match. One of these is given: a ``regex``; a ``choice`` of texts; ``json``, a JSON
    schema as an object or as its text, which is kept as text; or ``lark``, a grammar in llguidance's variant of Lark.

    Raises :class:`~llmk.api.RequestError` unless it is just one, not empty, and can be written as text. That text is
    checked when it is compiled.
    """

    regex: str | None = None
    choice: tuple[str, ...] | None = None
    json: Any = None
    lark: str | None = None

    def __post_init__(self) -> None:
        given = [name for name in _KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise RequestError(f"{PARAM} takes one of regex, choice, json and lark; {found} is given", param=PARAM)
        kinds: dict[str, Any] = {"regex": str | None, "choice": tuple[str, ...] | None, "lark": str | None}
        for name, kind in kinds.items():
            try:
                force_setattr(self, name, msgspec.convert(getattr(self, name), kind))
            except msgspec.ValidationError as error:
                raise RequestError(f"{PARAM}: {name}: {error}", param=PARAM) from None
        if self.choice is not None and not (self.choice and all(self.choice)):
            what = "has an empty entry" if self.choice else "has no entry"
            raise RequestError(f"{PARAM}: choice {what}", param=PARAM)
        if isinstance(self.json, bool | dict):
            force_setattr(self, "json", _as_text(self.json))
        elif not isinstance(self.json, str | None):
            kind = type(self.json).__name__
            raise RequestError(f"{PARAM}: json is a schema (an object, or its text), not {kind}", param=PARAM)
        try:
            self.text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(f"{PARAM}: {given[0]} is not valid Unicode: {error.reason}", param=PARAM) from None

    @property
    def kind(self) -> GrammarKind:
        """Which of them is given."""
        return next(name for name in _KINDS if getattr(self, name) is not None)

    @property
    def text(self) -> str:
        """The grammar as text: choices are a JSON array."""
        return _as_text(self.choice) if self.choice is not None else str(getattr(self, self.kind))


def _as_text(value: Any) -> str:
    """A value as JSON. Numbers that JSON lacks are refused, rather than written as null."""
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise RequestError(f"{PARAM}: json can't be written as JSON: {error}", param=PARAM) from None
    except RecursionError:
        raise RequestError(f"{PARAM}: json is nested too deeply", param=PARAM) from None

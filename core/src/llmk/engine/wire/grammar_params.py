"""The grammar of a request: what its whole output must match."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import force_setattr

from llmk.api import GrammarKind, RequestError

PARAM = "structured_outputs"
"""The sampling parameter, and the field of requests."""


class GrammarParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What the whole output must match. One of these is given: a ``regex``; a ``choice`` of texts; or ``json``, a JSON
    schema as an object or as its text, which is kept as text.

    Raises :class:`~llmk.api.RequestError` unless it is just one, and not empty. The text of a grammar is checked when
    it is compiled.
    """

    regex: str | None = None
    choice: tuple[str, ...] | None = None
    json: Any = None

    def __post_init__(self) -> None:
        given = [name for name in ("regex", "choice", "json") if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise RequestError(f"{PARAM} takes one of regex, choice and json; {found} is given", param=PARAM)
        kinds: dict[str, Any] = {"regex": str | None, "choice": tuple[str, ...] | None}
        for name, kind in kinds.items():
            try:
                force_setattr(self, name, msgspec.convert(getattr(self, name), kind))
            except msgspec.ValidationError as error:
                raise RequestError(f"{PARAM}: {name}: {error}", param=PARAM) from None
        if self.choice is not None and not (self.choice and all(self.choice)):
            what = "has an empty entry" if self.choice else "has no entry"
            raise RequestError(f"{PARAM}: choice {what}", param=PARAM)
        if isinstance(self.json, bool | dict):
            force_setattr(self, "json", msgspec.json.encode(self.json).decode())
        elif not isinstance(self.json, str | None):
            kind = type(self.json).__name__
            raise RequestError(f"{PARAM}: json is a schema (an object, or its text), not {kind}", param=PARAM)

    @property
    def kind(self) -> GrammarKind:
        """Which of them is given."""
        return "regex" if self.regex is not None else "json" if self.json is not None else "choice"

    @property
    def text(self) -> str:
        """The grammar as text: choices are a JSON array."""
        found = self.json if self.regex is None else self.regex
        return msgspec.json.encode(self.choice).decode() if found is None else str(found)

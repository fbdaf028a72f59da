"""Errors that cross from the engine to its front end, and arrive as the class that they were raised as."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from typing import Any

import msgspec

from llmk.api import LlmkError, Reason
from llmk.engine.wire.request import TokenOutput

BROKEN_MODEL = (
    "what the model computed is not finite (NaN or infinite): its weights, or a kernel that it runs, are broken",
    LlmkError.code,
)
"""Message and code."""


class Failure(msgspec.Struct, kw_only=True):
    """An error as data. ``detail`` is the traceback where it was raised."""

    code: str
    message: str
    hint: str = ""
    reasons: list[tuple[str, str, str, str]] = []
    attributes: dict[str, Any] = {}
    """What the error's class adds to :class:`~llmk.api.LlmkError` (``param``, ``retry_after``)."""
    detail: str = ""

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Takes down ``error``. One that is not llmk's own becomes an internal error that names its class."""
        detail = "".join(traceback.format_exception(error))
        if not isinstance(error, LlmkError):
            return cls(code=LlmkError.code, message=f"{type(error).__name__}: {error}", detail=detail)
        added = {name: value for name, value in vars(error).items() if name not in ("message", "hint", "reasons")}
        return cls(
            code=error.code,
            message=error.message,
            hint=error.hint,
            reasons=[(r.code, r.wanted, r.found, r.hint) for r in error.reasons],
            attributes={name: value for name, value in added.items() if isinstance(value, (str, int, float))},
            detail=detail,
        )

    @classmethod
    def in_output(cls, output: TokenOutput) -> Failure:
        """What a sequence failed with, from its last output."""
        attributes = {"param": output.error_param} if output.error_param else {}
        return cls(code=output.error_code, message=output.error, attributes=attributes)

    def error(self) -> LlmkError:
        """The error, of the class whose code it carries; the traceback is a note on it."""
        kind = next((kind for kind in _kinds(LlmkError) if kind.code == self.code), LlmkError)
        error = kind(self.message)
        error.hint = self.hint
        error.reasons = tuple(Reason(*reason) for reason in self.reasons)
        for name, value in self.attributes.items():
            setattr(error, name, value)
        if self.detail:
            error.add_note(f"in the engine:\n{self.detail}")
        return error


def _kinds(kind: type[LlmkError]) -> Iterator[type[LlmkError]]:
    yield kind
    for narrower in kind.__subclasses__():
        yield from _kinds(narrower)

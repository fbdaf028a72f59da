"""What a parser is tried on: an answer as a model writes it, and what it means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from llmk.api import ParserContext


@dataclass(frozen=True, slots=True, kw_only=True)
class ParserExample:
    """``ParserSpec.examples`` names a sequence of these, or of texts alone.

    ``calls`` are the names and arguments of the calls in ``text``, in order; the arguments are a JSON value. ``ids``
    are their ids, where the dialect has such. With ``context``, the parser must return exactly these, ``reasoning`` and
    ``content``, however the text is cut.
    """

    text: str
    reasoning: str = ""
    content: str = ""
    calls: Sequence[tuple[str, Any]] = ()
    ids: Sequence[str | None] = ()
    context: ParserContext = field(default_factory=ParserContext)

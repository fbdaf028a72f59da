"""Writes specs: all of a dialect follows from its name, as it is in a module of that name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from llmk.api import ParserQuery, ParserSpec, Verdict


def dialect(
    kind: Literal["reasoning", "tools"],
    name: str,
    parser: str,
    claims: Callable[[ParserQuery], Verdict],
    summary: str,
    *,
    module: str = "",
    **more: Any,
) -> ParserSpec:
    """The spec of the class ``parser`` in the module ``name`` (or ``module``) of the package for ``kind``, with the
    dialect's ``examples``. ``more``: other fields of :class:`~llmk.api.ParserSpec`."""
    where = f"llmk_parsers.{kind}.{module or module_of(name)}"
    return ParserSpec(
        id=f"parsers.{name}",
        name=name,
        implementation=f"{where}:{parser}",
        claims=claims,
        summary=summary,
        **{"examples": f"llmk_parsers.examples:{kind}.{module_of(name)}", **more},
    )


def writing(name: str, parser: str, claims: Callable[[ParserQuery], Verdict], summary: str, **more: Any) -> ParserSpec:
    """The spec of a tool dialect whose module has a ``WRITER``."""
    writer = f"llmk_parsers.tools.{module_of(name)}:WRITER"
    return dialect("tools", name, parser, claims, summary, writer=writer, **more)


def module_of(name: str) -> str:
    """The module of the dialect ``name``."""
    return name.replace("-", "_")

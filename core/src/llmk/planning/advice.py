"""Advice: the configuration lines that would choose a candidate that was turned down.

A line is given only where a plan made with it, in which all else is as configured, chooses the candidate at that site.
So no rule of choosing is written down here a second time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from llmk.api import Choice, LlmkError, Plan, Reason, Rejection

if TYPE_CHECKING:
    from llmk.config import Config

STRANGERS = ("not_vouched",)
"""The code of kernels that nobody vouches for, which a user may have installed to use them."""
ABLE = (*STRANGERS, "layout", "only_if_asked", "outranked")
"""Codes of all that could serve and were not chosen."""

Value = str | tuple[str, ...] | tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the configuration: the section's path, the key, and the value (pairs stand for a table)."""

    section: str
    key: str
    value: Value

    def __str__(self) -> str:
        return f"[{self.section}] {self.key} = {_toml(self.value)}"

    def apply(self, config: Config) -> Config:
        """``config`` with the line in the place of what it has there."""
        table = {each[0]: each[1] for each in self.value if isinstance(each, tuple)}
        value = table or self.value
        outer, _, kind = self.section.partition(".")
        section = getattr(config, outer)
        if kind:
            changed = getattr(section, kind).model_copy(update={self.key: value})
            return config.model_copy(update={outer: section.model_copy(update={kind: changed})})
        return config.model_copy(update={outer: section.model_copy(update={self.key: value})})


def with_advice(
    plan: Plan, config: Config, resolve: Callable[[Config], Plan], codes: Collection[str] = STRANGERS
) -> Plan:
    """``plan``, in which reasons with one of ``codes`` name the lines that would choose the candidate, if any would.

    ``resolve`` makes the plan of another configuration.
    """

    @cache
    def chosen(line: Line) -> frozenset[tuple[str, str, str]]:
        """Kind, site and id of all that is chosen with ``line``."""
        try:
            choices = list(resolve(line.apply(config)).all_choices())
        except LlmkError:
            return frozenset()
        return frozenset((choice.kind, choice.site, piece.id) for choice in choices for piece in choice.pieces)

    def advised(choice: Choice, out: Rejection) -> Rejection:
        reason = out.reasons[0]
        if len(out.reasons) > 1 or reason.code not in codes:
            return out
        for lines in _lines(config, choice, out):
            works = [str(line) for line in lines if (choice.kind, choice.site, out.id) in chosen(line)]
            if works:
                return _with_hint(out, reason, f"to choose it: {', or '.join(works)}")
        return _with_hint(out, reason, "")

    def walk(choice: Choice) -> Choice:
        rejected = tuple(advised(choice, out) for out in choice.rejected)
        return replace(choice, rejected=rejected, parts=tuple(map(walk, choice.parts)))

    return replace(plan, choices=tuple(map(walk, plan.choices)))


def _with_hint(out: Rejection, reason: Reason, hint: str) -> Rejection:
    return replace(out, reasons=(replace(reason, hint=hint),))


def _lines(config: Config, choice: Choice, out: Rejection) -> Iterator[list[Line]]:
    """What may choose a candidate, in groups, of which the first that has a line that works will do."""
    if choice.kind not in ("attention", "linear", "moe", "op"):
        return
    section = f"select.{choice.kind}"
    rules = getattr(config.select, choice.kind)
    wishes = [Line(section, "prefer", (out.id, *(id for id in rules.prefer if id != out.id)))]
    if out.reasons[0].code in STRANGERS:
        wishes.append(Line("plugins", "trust", (*config.plugins.trust, out.distribution)))
    yield wishes
    if isinstance(rules.use, str) and rules.use:
        yield [Line(section, "use", out.id)]
    else:
        yield [Line(section, "use", tuple({**(rules.use or {}), choice.site: out.id}.items()))]


def _toml(value: Value) -> str:
    if isinstance(value, str):
        return json.dumps(value)
    pairs = [f"{json.dumps(each[0])} = {json.dumps(each[1])}" for each in value if isinstance(each, tuple)]
    return f"{{{', '.join(pairs)}}}" if pairs else json.dumps(list(value))

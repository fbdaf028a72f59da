"""Advice: the configuration lines that would choose a rejected candidate.

A line is advised only if a plan resolved with it, and otherwise the same configuration, chooses the candidate at that
site. So the rules of selection are not implemented a second time.
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
"""Reason codes of kernels whose wheel is not trusted yet; the user may have installed it in order to use it."""
ABLE = (*STRANGERS, "layout", "opt_in", "outranked")
"""Reason codes of candidates that support the query but were not chosen."""

Value = str | tuple[str, ...] | tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the configuration: the section's path, the key and the value (pairs are a table)."""

    section: str
    key: str
    value: Value

    def __str__(self) -> str:
        return f"[{self.section}] {self.key} = {_toml(self.value)}"

    def apply(self, config: Config) -> Config:
        """``config`` with the line's value set."""
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
    """``plan`` with hints for reasons with one of ``codes``: the lines that would choose the candidate, if there are
    any.

    ``resolve`` makes the plan for another configuration.
    """

    @cache
    def chosen(line: Line) -> frozenset[tuple[str, str, str]]:
        """Kind, site and id of every kernel that is chosen with ``line``."""
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
    """Groups of lines that may choose a candidate; the first group in which a line works is used."""
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

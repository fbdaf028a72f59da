"""Suites find answers that are plausible and wrong, by what is known to be right."""

from __future__ import annotations

from typing import Any

import pytest
from defects import Defect, field, rare, results
from killing import check_good, check_killed

from llmk.api import IOProcessorSpec, LogitsProcessorSpec, ParserSpec, PolicySpec
from llmk_testing.bench import Bench

WHERE = "defects.results"


def tool_parser(name: str = f"{WHERE}:Calls", writer: str = f"{WHERE}:WRITER") -> ParserSpec:
    return ParserSpec(
        id="x.y",
        name="y",
        claims=results.parser.claims,
        implementation=name,
        examples="defects.parser:EXAMPLES",
        writer=writer,
    )


def reasoning_parser(
    name: str = f"{WHERE}:Thoughts", markers: tuple[str, str] = results.MARKERS, claims: Any = results.claims
) -> ParserSpec:
    return ParserSpec(
        id="x.y",
        name="y",
        claims=claims,
        implementation=name,
        examples=f"{WHERE}:THOUGHTS",
        markers=markers,
    )


def policy(name: str) -> PolicySpec:
    return PolicySpec(id="x.y", name="y", implementation=name, examples=f"{WHERE}:POLICY")


def logits_processor(name: str) -> LogitsProcessorSpec:
    return LogitsProcessorSpec(id="x.y", implementation=name, examples=f"{WHERE}:LOGITS")


def io_processor(name: str, examples: str = f"{WHERE}:IO") -> IOProcessorSpec:
    return IOProcessorSpec(id="x.y", name="y", implementation=name, examples=examples)


KINDS: dict[str, tuple[Any, tuple[Defect, ...]]] = {
    "tool_parser": (tool_parser, (*results.TOOL_PARSERS, *rare.TOOL_PARSERS, *field.TOOL_PARSERS)),
    "reasoning_parser": (
        reasoning_parser,
        (*results.REASONING_PARSERS, *rare.REASONING_PARSERS, *field.REASONING_PARSERS),
    ),
    "policy": (policy, (*results.POLICIES, *rare.POLICIES)),
    "logits_processor": (
        logits_processor,
        (*results.LOGITS_PROCESSORS, *rare.LOGITS_PROCESSORS, *field.LOGITS_PROCESSORS),
    ),
    "io_processor": (io_processor, (*results.IO_PROCESSORS, *rare.IO_PROCESSORS, *field.IO_PROCESSORS)),
}
PLANTED = [pytest.param(kind, defect, id=f"{kind}-{defect}") for kind, (_, all_) in KINDS.items() for defect in all_]


@pytest.mark.parametrize(("kind", "name"), [("tool_parser", "Calls"), ("reasoning_parser", "Thoughts")])
def test_good_parsers_pass(kind: str, name: str, bench: Bench) -> None:
    check_good(kind, KINDS[kind][0](f"{WHERE}:{name}"), bench)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "defect"), PLANTED)
def test_killed(kind: str, defect: Defect, bench: Bench) -> None:
    make = KINDS[kind][0]
    changes = defect.provider
    spec = make(**changes) if isinstance(changes, dict) else make(f"{changes.__module__}:{changes.__name__}")
    check_killed(kind, spec, bench, defect.case)

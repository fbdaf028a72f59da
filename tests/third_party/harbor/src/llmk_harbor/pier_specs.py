"""What the pier of llmk-harbor registers. It needs no torch."""

from __future__ import annotations

from llmk.api import (
    OK,
    IOProcessorSpec,
    LogitsProcessorSpec,
    ParserQuery,
    ParserSpec,
    PolicySpec,
    Verdict,
    hookimpl,
    no,
)


def claims(query: ParserQuery) -> Verdict:
    """Templates that write calls with the dialect's markers."""
    template = query.checkpoint.chat_template
    if isinstance(template, str) and "<<call " in template:
        return OK
    return no("chat_template", wanted="'<<call '", found="a template without it" if template else "no template")


@hookimpl
def llmk_scheduling_policies() -> list[PolicySpec]:
    """Scheduling policies."""
    return [
        PolicySpec(
            id="pier.lanes",
            name="lanes",
            implementation="llmk_harbor.pier_policy:LanesPolicy",
            examples="llmk_harbor.pier_examples:POLICY",
            summary="Lanes by the length of prompts, with shares; within one, by arrival, priority and weight.",
        )
    ]


@hookimpl
def llmk_logits_processors() -> list[LogitsProcessorSpec]:
    """Logits processors."""
    return [
        LogitsProcessorSpec(
            id="pier.dry",
            implementation="llmk_harbor.pier_logits:DryProcessor",
            examples="llmk_harbor.pier_examples:LOGITS",
            summary="Penalizes tokens that continue a repetition, the longer the more (DRY).",
        )
    ]


@hookimpl
def llmk_io_processors() -> list[IOProcessorSpec]:
    """IO processors."""
    return [
        IOProcessorSpec(
            id="pier.compare",
            name="compare",
            implementation="llmk_harbor.pier_io:CompareProcessor",
            examples="llmk_harbor.pier_examples:COMPARE",
            summary="Which of several continuations is likeliest after a context.",
        )
    ]


@hookimpl
def llmk_tool_parsers() -> list[ParserSpec]:
    """Tool parsers."""
    return [
        ParserSpec(
            id="pier.command_line",
            name="command_line",
            implementation="llmk_harbor.pier_tool:CommandLineParser",
            claims=claims,
            writer="llmk_harbor.pier_tool_writer:WRITER",
            examples="llmk_harbor.pier_examples:COMMAND_LINE",
            summary="<<call name, and a line of --option JSON for each argument",
        )
    ]


@hookimpl
def llmk_config_schema() -> object:
    """``[plugin.pier]``."""
    from llmk_harbor.pier_io import Options

    return Options

"""What the plugin ``heron`` registers. It needs no torch."""

from __future__ import annotations

from pydantic import BaseModel, Field

from llmk.api import (
    OK,
    Checkpoint,
    IOProcessorSpec,
    LogitsProcessorSpec,
    ParserQuery,
    ParserSpec,
    PolicySpec,
    Verdict,
    hookimpl,
    no,
)

_HEADER = "[[call."


class Options(BaseModel, extra="forbid"):
    """The section ``[plugin.heron]``."""

    max_choices: int = Field(64, ge=2, description="Choices of a request for heron.choice, at most.")


def claims(query: ParserQuery) -> Verdict:
    """Checkpoints whose chat template writes calls as tables."""
    template = query.checkpoint.chat_template or ""
    return OK if _HEADER in template else no("chat_template", wanted=_HEADER, hint="or choose heron.tables by name")


def generates(checkpoint: Checkpoint) -> Verdict:
    """Models that predict a next token, which those for embeddings and for classification don't."""
    architectures = checkpoint.config.get("architectures")
    architecture = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    if architecture.endswith(("Model", "ForSequenceClassification")):
        return no("architecture", wanted="a model that generates text", found=architecture)
    return OK


@hookimpl
def llmk_config_schema() -> type[BaseModel]:
    """Options."""
    return Options


@hookimpl
def llmk_scheduling_policies() -> list[PolicySpec]:
    """Scheduling policies."""
    return [
        PolicySpec(
            id="heron.recent",
            name="recent",
            implementation="llmk_estuary.heron_policy:RecentShares",
            examples="llmk_estuary.heron_examples:RECENT",
            summary="fair shares of recent work between tenants, with a half-life",
        )
    ]


@hookimpl
def llmk_logits_processors() -> list[LogitsProcessorSpec]:
    """Logits processors."""
    return [
        LogitsProcessorSpec(
            id="heron.no_repeat",
            implementation="llmk_estuary.heron_logits:NoRepeat",
            examples="llmk_estuary.heron_examples:NO_REPEAT",
            summary="no n-gram twice, in a window, with exceptions",
        )
    ]


@hookimpl
def llmk_io_processors() -> list[IOProcessorSpec]:
    """IO processors."""
    return [
        IOProcessorSpec(
            id="heron.choice",
            name="choice",
            implementation="llmk_estuary.heron_choice:MultipleChoice",
            supports=generates,
            examples="llmk_estuary.heron_examples:CHOICE",
            summary="multiple choice by log-probabilities, with calibration",
        )
    ]


@hookimpl
def llmk_tool_parsers() -> list[ParserSpec]:
    """Tool parsers."""
    return [
        ParserSpec(
            id="heron.tables",
            name="tables",
            implementation="llmk_estuary.heron_tables:TableParser",
            claims=claims,
            writer="llmk_estuary.heron_writer:WRITER",
            examples="llmk_estuary.heron_examples:TABLES",
            summary="tables of keys and values from [[call.name]] to [[end]], as in TOML",
        )
    ]

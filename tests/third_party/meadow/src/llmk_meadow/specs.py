"""The plugin module."""

from __future__ import annotations

from llmk.api import (
    CheckpointFormatSpec,
    GrammarSpec,
    KernelSpec,
    LauncherSpec,
    ModelSourceSpec,
    OpContract,
    PageSpec,
    RouterSpec,
    RouteSpec,
    SpeculatorSpec,
    StatLoggerSpec,
    Tier,
    hookimpl,
)
from llmk_meadow import barn, hay, nicely
from llmk_meadow.options import Options


@hookimpl
def llmk_config_schema() -> type[Options]:
    """Options of all its plugins."""
    return Options


@hookimpl
def llmk_routers() -> list[RouterSpec]:
    """The ring."""
    return [
        RouterSpec(
            id="meadow.ring",
            name="ring",
            implementation="llmk_meadow.ring:Ring",
            examples="llmk_meadow.examples:RING",
            summary="sessions and prefixes stay where they are, as long as work is even",
        )
    ]


@hookimpl
def llmk_speculators() -> list[SpeculatorSpec]:
    """One on the host, one on the device."""
    return [
        SpeculatorSpec(
            id="meadow.paths",
            name="paths",
            implementation="llmk_meadow.paths:Paths",
            examples="llmk_meadow.examples:PATHS",
            summary="what most often followed the longest known context",
        ),
        SpeculatorSpec(
            id="meadow.loops",
            name="loops",
            implementation="llmk_meadow.loops:Loops",
            on_device=True,
            examples="llmk_meadow.examples:LOOPS",
            summary="what repeats itself goes on",
        ),
    ]


@hookimpl
def llmk_grammars() -> list[GrammarSpec]:
    """Choices."""
    return [
        GrammarSpec(
            id="meadow.trie",
            name="trie",
            implementation="llmk_meadow.trie:Trie",
            kinds=("choice",),
            score=-10,
            examples="llmk_meadow.examples:CHOICES",
            summary="one of a list of texts",
        )
    ]


@hookimpl
def llmk_model_sources() -> list[ModelSourceSpec]:
    """The barn."""
    return [
        ModelSourceSpec(
            id="meadow.barn",
            name="barn",
            claims=barn.claims,
            implementation="llmk_meadow.barn:Barn",
            examples="llmk_meadow.examples:barn",
            summary="tar archives in a folder, with versions and checksums",
        )
    ]


@hookimpl
def llmk_stat_loggers() -> list[StatLoggerSpec]:
    """The ledger."""
    return [
        StatLoggerSpec(
            id="meadow.ledger",
            name="ledger",
            implementation="llmk_meadow.ledger:Ledger",
            examples="llmk_meadow.examples:LEDGER",
            summary="lines of JSON, in files of bounded size",
        )
    ]


@hookimpl
def llmk_launchers() -> list[LauncherSpec]:
    """Behind a command."""
    return [
        LauncherSpec(
            id="meadow.nicely",
            name="nicely",
            implementation="llmk_meadow.nicely:Nicely",
            supports=nicely.supports,
            examples="llmk_meadow.examples:NICELY",
            summary="ranks on this machine, behind a command such as nice",
        )
    ]


@hookimpl
def llmk_pages() -> list[PageSpec]:
    """The board."""
    return [
        PageSpec(
            id="meadow.board",
            path="/board",
            package="llmk_meadow",
            folder="board",
            summary="how many requests run and wait",
        )
    ]


@hookimpl
def llmk_routes() -> list[RouteSpec]:
    """Cohere's chats."""
    return [
        RouteSpec(
            id="meadow.cohere",
            method="POST",
            path="/v2/chat",
            implementation="llmk_meadow.cohere:Chat",
            examples="llmk_meadow.chat_examples:CHATS",
            summary="Cohere's chat API, version 2",
        )
    ]


@hookimpl
def llmk_checkpoint_formats() -> list[CheckpointFormatSpec]:
    """Hay."""
    return [
        CheckpointFormatSpec(
            id="meadow.hay",
            name="hay",
            claims=hay.claims,
            implementation="llmk_meadow.hay:read",
            examples="llmk_meadow.hay_examples:HAY",
            summary="a header of JSON, then tensors",
        )
    ]


@hookimpl
def llmk_ops() -> list[KernelSpec | OpContract]:
    """An op, and two kernels of it."""
    kernels = [
        KernelSpec(
            id=f"meadow.smoothed_norm{suffix}",
            kind="op",
            op="smoothed_norm",
            implementation=f"llmk_meadow.warm:{function}",
            tier=tier,
            capture="full",
            summary=summary,
        )
        for suffix, function, tier, summary in (
            ("", "reference", Tier.REFERENCE, "by squares"),
            ("_by_norms", "by_norms", Tier.PORTABLE, "by vector norms"),
        )
    ]
    contract = OpContract(
        id="meadow.smoothed_norm",
        op="smoothed_norm",
        signature="(average, x, weight, momentum, eps) -> normed",
        facts=("size", "momentum", "eps"),
        examples="llmk_meadow.warm_examples:SMOOTHED",
        mutates_args=("average",),
        weights=("weight",),
        summary="a root-mean-square norm by a running mean of squares",
    )
    return [contract, *kernels]

"""The plugin ``skua``: a router, two speculators and a compiler of grammars. It imports no torch."""

from __future__ import annotations

from pydantic import BaseModel, Field

from llmk.api import GrammarSpec, RouterSpec, SpeculatorSpec, hookimpl


class Options(BaseModel, extra="forbid"):
    """``[plugin.skua]``."""

    order: int = Field(5, ge=1, le=32, description="Most tokens of a context, on the host.")
    min_order: int = Field(2, ge=1, le=32, description="Fewest tokens of a context, on the host.")
    min_share: float = Field(0.5, ge=0, le=1, description="Share that a successor needs of its context, on the host.")
    match: int = Field(8, ge=1, le=64, description="Most tokens that are compared, on the device.")
    min_match: int = Field(2, ge=1, le=64, description="Fewest equal tokens to draft from, on the device.")


@hookimpl
def llmk_config_schema() -> object:
    """The options of both speculators."""
    return Options


@hookimpl
def llmk_routers() -> list[RouterSpec]:
    """Routers. One is only used if the configuration names it."""
    return [
        RouterSpec(
            id="skua.rendezvous",
            name="rendezvous",
            implementation="llmk_fjord.skua_router:Rendezvous",
            examples="llmk_fjord.skua_examples:ROUTER",
            summary="where the session or the prompt's opening hashes to, as long as work stays even",
        )
    ]


@hookimpl
def llmk_speculators() -> list[SpeculatorSpec]:
    """Speculators. One is only used if the configuration names it."""
    return [
        SpeculatorSpec(
            id="skua.majority",
            name="majority",
            implementation="llmk_fjord.skua_majority:Majority",
            examples="llmk_fjord.skua_examples:SPECULATOR",
            summary="what most often followed the request's last tokens, on the host",
        ),
        SpeculatorSpec(
            id="skua.period",
            name="period",
            implementation="llmk_fjord.skua_period:Period",
            on_device=True,
            examples="llmk_fjord.skua_examples:DEVICE_SPECULATOR",
            summary="the longest match of the request's end, repeated without end, on the device",
        ),
    ]


@hookimpl
def llmk_grammars() -> list[GrammarSpec]:
    """A compiler of grammars, which is not preferred to others: it knows two kinds."""
    return [
        GrammarSpec(
            id="skua.dfa",
            name="dfa",
            implementation="llmk_fjord.skua_grammar:Compiler",
            kinds=("regex", "choice"),
            score=-10,
            examples="llmk_fjord.skua_examples:GRAMMARS",
            summary="regular expressions and choices, as automata of bytes that are made ahead",
        )
    ]

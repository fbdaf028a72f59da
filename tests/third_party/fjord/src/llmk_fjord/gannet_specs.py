"""What gannet registers: llama.cpp's routes, a page, an op, an executor and a command. It needs no torch."""

from __future__ import annotations

from llmk.api import (
    OK,
    CommandSpec,
    ExecutorQuery,
    ExecutorSpec,
    KernelSpec,
    OpContract,
    OpQuery,
    PageSpec,
    RouteSpec,
    Tier,
    Verdict,
    hookimpl,
    no,
)
from llmk_fjord.gannet_supports import executor_supports


def op_supports(query: OpQuery) -> Verdict:
    """Whole groups."""
    size, groups = query.facts.get("size"), query.facts.get("groups")
    if not isinstance(size, int) or not isinstance(groups, int) or groups < 1 or size % groups:
        return no("groups", wanted=f"{groups} equal groups", found=f"{size} elements")
    return OK


def plain_supports(query: ExecutorQuery) -> Verdict:
    """Whether the plain executor can run a model here."""
    return executor_supports(query)


@hookimpl
def llmk_routes() -> list[RouteSpec]:
    """llama.cpp's own API."""
    return [
        RouteSpec(
            id="gannet.completion",
            method="POST",
            path="/completion",
            implementation="llmk_fjord.gannet_route:Completion",
            any_content_type=True,
            examples="llmk_fjord.gannet_examples:COMPLETION",
            summary="llama.cpp's API: a text continued, streamed or complete",
        ),
        RouteSpec(
            id="gannet.embedding",
            method="POST",
            path="/embedding",
            implementation="llmk_fjord.gannet_route:Embedding",
            any_content_type=True,
            examples="llmk_fjord.gannet_examples:EMBEDDING",
            summary="llama.cpp's API: embeddings of texts",
        ),
        RouteSpec(
            id="gannet.props",
            method="GET",
            path="/props",
            implementation="llmk_fjord.gannet_route:Props",
            examples="llmk_fjord.gannet_examples:PROPS",
            summary="llama.cpp's API: properties of the server",
        ),
    ]


@hookimpl
def llmk_pages() -> list[PageSpec]:
    """The tokenizer's page."""
    return [
        PageSpec(
            id="gannet.tokens",
            path="/tokens",
            package="llmk_fjord",
            folder="gannet_page",
            summary="a text, token by token",
        )
    ]


@hookimpl
def llmk_ops() -> list[KernelSpec | OpContract]:
    """Residual sum and dynamic tanh."""
    return [
        OpContract(
            id="gannet.add_dynamic_tanh",
            op="add_dynamic_tanh",
            signature="(residual, x, alpha, weight, bias) -> out",
            facts=("size", "groups"),
            examples="llmk_fjord.gannet_examples:ADD_DYNAMIC_TANH",
            mutates_args=("residual",),
            weights=("alpha", "weight", "bias"),
            summary="Residual sum in place, then dynamic tanh in place of a norm.",
        ),
        KernelSpec(
            id="gannet.add_dynamic_tanh",
            kind="op",
            op="add_dynamic_tanh",
            implementation="llmk_fjord.gannet_op:add_dynamic_tanh",
            tier=Tier.REFERENCE,
            supports=op_supports,
            deterministic=True,
            summary="Residual sum, then dynamic tanh, in float32.",
        ),
        KernelSpec(
            id="gannet.add_dynamic_tanh_tiled",
            kind="op",
            op="add_dynamic_tanh",
            implementation="llmk_fjord.gannet_op:add_dynamic_tanh_tiled",
            tier=Tier.PORTABLE,
            supports=op_supports,
            deterministic=True,
            summary="The same in tiles of rows, with little memory.",
        ),
    ]


@hookimpl
def llmk_executors() -> list[ExecutorSpec]:
    """The plain executor."""
    return [
        ExecutorSpec(
            id="gannet.plain",
            name="plain",
            implementation="llmk_fjord.gannet_executor:PlainExecutor",
            supports=plain_supports,
            knows=frozenset({"top_k", "top_p", "min_p"}),
            summary="each request by itself, by the references, in float32: to compare with",
        )
    ]


@hookimpl
def llmk_commands() -> list[CommandSpec]:
    """``llmk weights``."""
    return [
        CommandSpec(
            id="gannet.weights",
            name="weights",
            implementation="llmk_fjord.gannet_command:Weights",
            summary="list the tensors of a checkpoint and check that its files are whole",
        )
    ]

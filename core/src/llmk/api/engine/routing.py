"""The contract of routers: which of several replicas of a model gets a request.

A router sees requests as :class:`RoutedRequest` and replicas as :class:`ReplicaState`. Every result is checked. A
router that raises, does not return in time, or returns a replica that was not among the arguments, is reported and
replaced by the built-in choice: the replica with the least work.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from llmk.api.specs import CheckedSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSpec(CheckedSpec):
    """A router. ``implementation`` names a class that implements :class:`Router`."""

    id: str
    name: str
    implementation: str
    examples: str = ""
    """``"module:attribute"`` of test inputs for the conformance kit (``docs/plugins``); see :mod:`llmk_testing`."""
    overrides: str = ""
    summary: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedRequest:
    """A sequence, as a router sees it.

    Attributes:
        tenant: the client, by API key or address.
        session: what the client says belongs together (OpenAI's ``prompt_cache_key``); empty: nothing.
        blocks: for each full block of the prompt, its hash. It names the whole prompt up to the block's end, so that
            two prompts share as many leading hashes as they share blocks.
        block_size: tokens per block.
        num_prompt_tokens: length of the prompt.
        expected_tokens: how many tokens it will probably generate.
    """

    tenant: str = ""
    session: str = ""
    blocks: Sequence[int] = ()
    block_size: int = 16
    num_prompt_tokens: int = 1
    expected_tokens: int = 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReplicaState:
    """A replica that takes requests, as it is when one is to be placed.

    Attributes:
        id: its name, which it keeps when its engine is started again.
        running: sequences in its batch.
        waiting: sequences that wait there.
        load: tokens that it has still to compute for the sequences it was given: of their prompts, without cached
            blocks, and of their outputs, as far as these are foreseen.
        slowness: how long its steps take, as a multiple of the median of all replicas.
        blocks: hashes of the blocks that it holds, or will hold once it has computed the prompts that it was given.
        tenants: how many unfinished sequences of each tenant it was given.
    """

    id: str
    running: int = 0
    waiting: int = 0
    load: int = 0
    slowness: float = 1.0
    blocks: Container[int] = frozenset()
    tenants: Mapping[str, int] = field(default_factory=dict)

    def cached_tokens(self, request: RoutedRequest) -> int:
        """How many leading tokens of the prompt it need not compute."""
        for number, block in enumerate(request.blocks):
            if block not in self.blocks:
                return number * request.block_size
        return len(request.blocks) * request.block_size

    def new_tokens(self, request: RoutedRequest) -> int:
        """How many tokens it would compute for the request: one of the prompt at least, and its output."""
        return max(1, request.num_prompt_tokens - self.cached_tokens(request)) + request.expected_tokens


@dataclass(frozen=True, slots=True)
class RouterContext:
    """The constructor argument of a router. ``max_load`` is ``[replicas] max_load``: how much work the busiest replica
    may have, as a multiple of the mean.
    """

    max_load: float = 1.1


class Router(Protocol):
    """Places the requests of one front end. Called once for each sequence that is to start or to go on elsewhere, from
    one thread.

    Results must depend only on the arguments of earlier and current calls: not on a clock, on memory addresses, or on
    state shared between instances. There is no notification when a request ends or a replica goes: what is kept of
    sessions and tenants must be bounded. Calls must take time at most linear in the number of replicas. No matter what
    requests have in common, none of several equal replicas may get much more work than the others for long.
    """

    def __init__(self, context: RouterContext) -> None: ...

    @abstractmethod
    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaState]) -> ReplicaState:
        """One of ``replicas``, of which there is one at least. They come in the same order each time; those that are
        down, draining or too slow are left out."""
        ...

"""Has Ray Serve choose replicas by llmk's routers."""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections import Counter, OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, ReplicaResult, RequestRouter, RunningReplica

from llmk.api import ENTRY_POINT_GROUP, ConfigError, ReplicaState, RoutedRequest, Router, RouterContext, RouterSpec
from llmk_ray.call import Call

logger = logging.getLogger("ray.serve")

KNOWN_BLOCKS = 1 << 16
"""Blocks of text that are remembered of each replica."""


def router_named(name: str) -> type[Router]:
    """The router of that id or name, of all installed wheels. Raises :class:`~llmk.api.ConfigError`."""
    found: list[RouterSpec] = []
    for point in entry_points(group=ENTRY_POINT_GROUP):
        hook = getattr(point.load(), "llmk_routers", None)
        found += hook() if hook is not None else ()
    for spec in found:
        if name in (spec.id, spec.name):
            module, _, attribute = spec.implementation.partition(":")
            made: type[Router] = getattr(importlib.import_module(module), attribute)
            return made
    known = ", ".join(spec.name for spec in found) or "none"
    raise ConfigError(
        f"no installed wheel has a router {name!r} (installed: {known})", hint="pip install llmk-policies"
    )


@dataclass(slots=True)
class Known:
    """What this front end knows of a replica: what it was given, and what it was given before."""

    calls: dict[str, RoutedRequest] = field(default_factory=dict)
    """Those that it has not answered, by Serve's id."""
    blocks: OrderedDict[int, None] = field(default_factory=OrderedDict)

    def state(self, id: str) -> ReplicaState:
        """What routers see."""
        return ReplicaState(
            id=id,
            running=len(self.calls),
            load=sum(facts.num_prompt_tokens + facts.expected_tokens for facts in self.calls.values()),
            blocks=self.blocks,
            tenants=Counter(facts.tenant for facts in self.calls.values()),
        )

    def give(self, id: str, facts: RoutedRequest) -> None:
        """It gets a call."""
        self.calls[id] = facts
        for block in facts.blocks:
            self.blocks[block] = None
            self.blocks.move_to_end(block)
        while len(self.blocks) > KNOWN_BLOCKS:
            self.blocks.popitem(last=False)


class LlmkRequestRouter(RequestRouter):  # type: ignore[misc]
    """The router that is named, and the least busy replica where it fails."""

    def initialize_state(self, router: str, max_load: float, router_seconds: float) -> None:
        """Serve calls it with what the application was built with."""
        self._router: Router | None = router_named(router)(RouterContext(max_load))
        self._name, self._seconds = router, router_seconds
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="llmk-router")
        self._known: dict[str, Known] = {}

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The replica that the router chooses, then the others: one that is full refuses, and the next is asked."""
        here = {each.replica_id.unique_id: each for each in candidate_replicas}
        self._known = {id: self._known.get(id) or Known() for id in here}
        states = [known.state(id) for id, known in self._known.items()]
        states.sort(key=lambda one: one.load)
        facts = _facts(pending_request)
        if facts is not None and self._router is not None and len(states) > 1:
            chosen = await self._asked(self._router, facts, sorted(states, key=lambda one: one.id))
            states.sort(key=lambda one: one is not chosen)
        return [[here[one.id]] for one in states]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: ReplicaResult) -> None:
        """A replica has taken a call."""
        known, facts = self._known.get(replica_id.unique_id), _facts(pending_request)
        if known is None or facts is None:
            return
        id = pending_request.metadata.internal_request_id
        known.give(id, facts)
        result.add_done_callback(lambda _: known.calls.pop(id, None))

    async def _asked(self, router: Router, facts: RoutedRequest, states: Sequence[ReplicaState]) -> ReplicaState | None:
        """The router's choice; ``None`` where it fails, which it may once."""
        try:
            asked = asyncio.get_running_loop().run_in_executor(self._thread, router.choose, facts, states)
            chosen = await asyncio.wait_for(asked, self._seconds)
            if not any(chosen is one for one in states):
                raise ValueError(f"choose() returned {chosen!r}, which was not among the replicas it was given")
            return chosen
        except Exception as error:
            if self._router is not None:
                what = "the router %s failed (%s: %s); requests go to the least busy replica from now on"
                logger.error(what, self._name, type(error).__name__, error)
            self._router = None
            return None


def _facts(pending_request: PendingRequest | None) -> RoutedRequest | None:
    given: Sequence[Any] = pending_request.args if pending_request is not None else ()
    return next((each.facts for each in given if isinstance(each, Call)), None)

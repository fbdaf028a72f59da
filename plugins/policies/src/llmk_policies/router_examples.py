"""Oracles of the routers, for the conformance kit: their rules once more, by the plainest code."""

from __future__ import annotations

from collections.abc import Sequence

from llmk.api import ReplicaState, RoutedRequest, Router, RouterContext
from llmk_testing.router_examples import RouterExamples


class PlainTurns(Router):
    """Counts its calls."""

    def __init__(self, context: RouterContext) -> None:
        self._calls = 0

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaState]) -> ReplicaState:
        """The one with the call's number."""
        self._calls += 1
        return list(replicas)[(self._calls - 1) % len(replicas)]


class PlainCounts(Router):
    """Sorts by counts. Remembers every choice."""

    def __init__(self, context: RouterContext) -> None:
        self._chosen: list[str] = []

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaState]) -> ReplicaState:
        """The first of those with the fewest sequences, of these with the fewest of the tenant, of these the one that
        was chosen least recently."""
        fewest = min(one.running + one.waiting for one in replicas)
        left = [one for one in replicas if one.running + one.waiting == fewest]
        fewest = min(one.tenants.get(request.tenant, 0) for one in left)
        left = [one for one in left if one.tenants.get(request.tenant, 0) == fewest]
        never = [one for one in left if one.id not in self._chosen]
        chosen = never[0] if never else min(left, key=lambda one: self._chosen[::-1].index(one.id) * -1)
        self._chosen.append(chosen.id)
        return chosen


class PlainPrefixes(Router):
    """Looks at all that was given, again and again."""

    def __init__(self, context: RouterContext) -> None:
        self._max_load = context.max_load
        self._given: dict[str, float] = {}
        self._mean = 0.0
        self._homes: dict[tuple[str, str], str] = {}

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaState]) -> ReplicaState:
        """Drops who is overloaded, then who has less cached, and so on."""
        old = [self._given[one.id] for one in replicas if one.id in self._given]
        start = sum(old) / len(old) if old else 0.0
        self._given = {one.id: self._given.get(one.id, start) for one in replicas}
        for id in self._given:
            self._given[id] *= 0.5 ** (1.0 / (32 * len(replicas)))
        loads = {one.id: one.load * one.slowness for one in replicas}
        able = [one for one in replicas if self._fits(loads, one.id) and self._fits(self._given, one.id)]
        if able:
            chosen = self._best(request, able)
        else:
            chosen = next(one for one in replicas if loads[one.id] == min(loads.values()))
        tokens = max(1, request.num_prompt_tokens - _cached(request, chosen)) + request.expected_tokens
        self._given[chosen.id] += tokens
        self._mean = self._mean + (tokens - self._mean) / 32 if self._mean else tokens
        if request.session:
            self._homes[request.tenant, request.session] = chosen.id
        return chosen

    def _fits(self, loads: dict[str, float], id: str) -> bool:
        mean = sum(loads.values()) / len(loads)
        return loads[id] <= self._max_load * mean or loads[id] <= mean + 4 * self._mean

    def _best(self, request: RoutedRequest, able: list[ReplicaState]) -> ReplicaState:
        longest = max(_cached(request, one) for one in able)
        able = [one for one in able if _cached(request, one) == longest]
        home = self._homes.get((request.tenant, request.session)) if request.session else None
        able = [one for one in able if one.id == home] or able
        fewest = min(one.tenants.get(request.tenant, 0) for one in able)
        able = [one for one in able if one.tenants.get(request.tenant, 0) == fewest]
        least = min(self._given[one.id] for one in able)
        return next(one for one in able if self._given[one.id] == least)


def _cached(request: RoutedRequest, replica: ReplicaState) -> int:
    count = 0
    while count < len(request.blocks) and request.blocks[count] in replica.blocks:
        count += 1
    return count * request.block_size


ROUND_ROBIN = RouterExamples(oracle=PlainTurns)
LEAST_LOADED = RouterExamples(oracle=PlainCounts)
PREFIX_AWARE = RouterExamples(oracle=PlainPrefixes)

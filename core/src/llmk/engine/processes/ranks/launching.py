"""Where the ranks of a model go, and what each is given: with the engine's own launcher, or a plugin's."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from llmk.api import (
    ConfigError,
    LaunchContext,
    LauncherSpec,
    LaunchQuery,
    LlmkError,
    PluginError,
    RankLauncher,
    RankPlace,
    RankProcess,
    RankRules,
    Reason,
)
from llmk.api.errors import describe
from llmk.engine.processes import child_process as child
from llmk.engine.processes.ranks.checks import Expected
from llmk.engine.processes.ranks.local_launcher import LocalLauncher
from llmk.engine.processes.ranks.sockets import EngineSockets
from llmk.engine.processes.ranks.worker_messages import RankStart
from llmk.engine.wire.plugin_calls import watching
from llmk.kernel.loader import load_object
from llmk.planning.choices.launchers import KIND, launcher_of
from llmk.planning.packed_boot import pack

if TYPE_CHECKING:
    from llmk.planning.boot import Boot

ARGUMENTS = ("-P", "-m", "llmk.engine.processes.ranks.rank")
"""Those of Python for a rank's process."""


@dataclass(frozen=True, slots=True)
class Placed:
    """The ranks' places, by rank, and their numbers as the launcher has them."""

    launcher: RankLauncher
    places: tuple[RankPlace, ...]
    numbers: tuple[int, ...]

    @classmethod
    def by(cls, boot: Boot, launcher: RankLauncher) -> Placed:
        """Has the launcher reserve places, and the platform say which rank has which. Raises PluginError for what
        neither may say."""
        plan, rules = boot.plan, _rules(boot)
        places = launcher.place()
        if len(places) != plan.num_ranks:
            raise PluginError(f"the launcher has {len(places)} places for {plan.num_ranks} ranks")
        ranks = [rules.rank_at(place, plan.tensor, plan.pipeline) for place in range(plan.num_ranks)]
        if sorted(ranks) != list(range(plan.num_ranks)):
            raise PluginError(f"{plan.platform_id} puts ranks {ranks} in {len(ranks)} places, where each must be once")
        numbers = tuple(ranks.index(rank) for rank in range(plan.num_ranks))
        return cls(launcher, tuple(places[number] for number in numbers), numbers)

    def sharing(self, boot: Boot, rank: int) -> frozenset[int]:
        """The ranks that have the device of ``rank``, including ``rank``."""
        if not self.places[rank].node:
            return frozenset(boot.plan.ranks_on_same_device(rank))
        device = _device(self.places[rank], shared=boot.platform_facts.shared_device)
        shared = boot.platform_facts.shared_device
        return frozenset(other for other, place in enumerate(self.places) if _device(place, shared=shared) == device)

    def start(self, boot: Boot, sockets: EngineSockets) -> None:
        """Starts all processes."""
        packed, store = pickle.dumps(pack(boot)), sockets.folder and f"{sockets.folder}/store"
        remote = bool(self.launcher.address)
        expected = Expected.by(boot.checkpoint) if remote else None
        for rank, place in enumerate(self.places):
            start = RankStart(
                rank=rank,
                link=sockets.link(rank),
                node=place.node,
                address=place.address,
                index=place.index if place.node else boot.first_device + place.index,
                num_sharing=len(self.sharing(boot, rank)),
                near=self._near(rank, boot.plan.tensor),
                devices=place.devices,
                store=store,
                watching=None if remote else watching(rank),
                expected=expected,
                boot=packed,
            )
            data = child.packed(sockets.folder, msgspec.msgpack.encode(start))
            self.launcher.start(self.numbers[rank], RankProcess(arguments=ARGUMENTS, input=data))

    def _near(self, rank: int, tensor: int) -> bool:
        """Whether the ranks of its stage are all on one machine."""
        first = rank - rank % tensor
        return len({place.node for place in self.places[first : first + tensor]}) == 1

    def rank(self, number: int) -> int:
        """Which rank has a place, by the launcher's number."""
        return self.numbers.index(number)

    def differ(self, problems: dict[int, list[str]]) -> LlmkError:
        """The error for machines that lack what the engine's has: what is wrong on each."""
        nodes: dict[str, list[str]] = {}
        for rank, found in sorted(problems.items()):
            nodes.setdefault(self.places[rank].node, found)
        lines = [f"{node}: {problem}" for node, found in nodes.items() for problem in found]
        named = "\n".join(lines)
        return ConfigError(
            f"{len(nodes)} of {len({place.node for place in self.places})} nodes can't run what this machine planned:\n"
            f"{named}",
            hint="have the same wheels and the same model, at the same path, on all nodes",
        )


def make_launcher(boot: Boot, ended: Callable[[int, str], None], said: Callable[[int, str], None]) -> RankLauncher:
    """The plan's launcher. Raises PluginError for one that can't be made, and what it raises as an LlmkError."""
    plan, choice, options = boot.plan, launcher_of(boot.plan), boot.settings.config.plugin
    query = LaunchQuery(platform=plan.platform, tensor=plan.tensor, pipeline=plan.pipeline)
    resource = _rules(boot).resource
    if choice is None:
        return LocalLauncher(LaunchContext(query=query, resource=resource, ended=ended, said=said))
    found = next(found for found in boot.registry.of(LauncherSpec) if found.spec.id == choice.id)
    own = options.get(found.plugin.name, {})
    context = LaunchContext(query=query, resource=resource, ended=ended, said=said, options=own)
    make = load_object(found.spec.implementation, plugin=found.plugin, kind=KIND, id=found.spec.id)
    try:
        made: RankLauncher = make(context)
    except LlmkError:
        raise
    except Exception as error:
        what = f"{found.spec.id} of {found.plugin.wheel} can't start"
        raise PluginError(what, reasons=[Reason("launcher_raised", KIND, describe(error))]) from error
    return made


def names(places: Sequence[RankPlace]) -> list[str]:
    """What messages call where each rank is; empty for this machine."""
    return [f" on {place.node}" if place.node else "" for place in places]


def _device(place: RankPlace, *, shared: bool) -> tuple[str, int]:
    return (place.node, 0 if shared else place.index)


def _rules(boot: Boot) -> RankRules:
    return next(found.spec.ranks for found in boot.registry.platforms if found.spec.id == boot.plan.platform_id)

"""The contract of launchers: what starts the processes that run a model together (ranks), on this machine or others,
and says when one ends.

A launcher knows nothing of models: it reserves places, starts a Python process in each, and hears of their ends. What
the processes say to each other goes over the network, encrypted, and not through the launcher.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from llmk.api.platform import PlatformFacts
from llmk.api.specs import CheckedSpec
from llmk.api.verdict import OK, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchQuery:
    """Whether a launcher can start ``tensor * pipeline`` ranks for a platform."""

    platform: PlatformFacts
    tensor: int = 1
    pipeline: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherSpec(CheckedSpec):
    """A launcher. ``implementation`` names a class that implements :class:`RankLauncher`. ``supports`` returns whether
    it can start ranks; it imports nothing heavy."""

    id: str
    name: str
    implementation: str
    supports: Callable[[LaunchQuery], Verdict] = lambda query: OK
    examples: str = ""
    """``"module:attribute"`` of a section of the plugin's configuration for the conformance kit (``docs/plugins``)."""
    overrides: str = ""
    summary: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchContext:
    """What a launcher is made from.

    Attributes:
        query: how many ranks there are, and for which platform.
        resource: what clusters call a device of the platform (:attr:`llmk.api.RankRules.resource`).
        ended: call it, from any thread, when a process has ended that was not killed by :meth:`RankLauncher.kill`,
            with the number of its place and how it ended (``"was killed by SIGKILL"``), as far as that is known. By
            then all that it wrote was said, and what it had started and left is killed. It may call ``kill``.
        said: call it, from any thread, with the number of a place and each line that the process there wrote to its
            standard output or error. Where a process inherits those of this one, there is nothing to call.
        options: the plugin's section of the configuration, checked.
    """

    query: LaunchQuery
    resource: str
    ended: Callable[[int, str], None]
    said: Callable[[int, str], None]
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """Where a rank runs. ``node`` is what messages call the machine, and ``address`` is its own, by which the others
    reach it; both are empty for this machine, where there is no other. ``index`` is the number of the rank's device
    among those that the ranks on the machine have; ``devices`` are their names, as the platform's environment lists
    them, where the processes are not limited to them yet, one for each rank there: ``devices[index]`` is its own. No
    other engine's rank has it meanwhile."""

    node: str = ""
    address: str = ""
    index: int = 0
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProcess:
    """A process to start: the arguments of Python, and what to write to its standard input, which must stay open: the
    process ends when it is closed, so that it does not outlive what started it. ``input`` holds secrets: it must not be
    stored, shown in the process's arguments or environment, or sent without encryption over a network that others can
    read.

    It is run by the Python of the place, which has the same wheels. On this machine, that, the environment and the
    working folder are those of this process; variables may be added. What the platform wants
    (:meth:`llmk.api.RankRules.environment`) is in ``input``: the process sets it before it imports torch."""

    arguments: tuple[str, ...]
    input: bytes


class RankLauncher(Protocol):
    """Starts the processes of one model. It is made in the engine's process, and connects to what it needs then.

    ``address`` is that of this machine, by which all places reach it; empty: all places are on this machine.
    """

    address: str

    @abstractmethod
    def __init__(self, context: LaunchContext) -> None: ...

    @abstractmethod
    def place(self) -> Sequence[RankPlace]:
        """Reserves a place for each of the ``tensor * pipeline`` ranks, and returns them, close ones next to each
        other, as those of one node are. Called once. Raises NotEnoughResources, which says what is missing where; then
        nothing is reserved. Places of an engine that was killed are free again, as are those of one that closed."""
        ...

    @abstractmethod
    def start(self, place: int, process: RankProcess) -> None:
        """Starts a process in a place, without waiting for it or for its reading of the input. What fails may be
        raised, or reported as its end. Called once for each place, from one thread. After :meth:`kill` it starts none:
        it returns, or raises. Where it is called meanwhile, from another thread, the process is killed, too.

        The process leads a process group, or a session. It may close its output, and go on."""
        ...

    @abstractmethod
    def kill(self) -> None:
        """Kills all processes at once, with all that is in their process groups, without waiting for them; from any
        thread, any number of times, also before any was started."""
        ...

    @abstractmethod
    def close(self) -> None:
        """Kills what still runs, waits for its end, where it is on this machine, and gives the places back. Idempotent;
        may be called before :meth:`place`, and after one that raised."""
        ...

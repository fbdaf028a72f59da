"""Starts ranks on the nodes of a Ray cluster: an actor for each, in a placement group."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from llmk.api import ConfigError, EngineDead, LaunchContext, NotEnoughResources, RankLauncher, RankPlace, RankProcess
from llmk_ray import warden
from llmk_ray.resources import lacking

_ANSWER_SECONDS = 60.0
"""What actors get to start, once there is a place for them."""
_ENDING_SECONDS = 5.0
"""What threads get to hear that actors were killed."""
_CONNECT_SECONDS = 5.0
_LOOK_SECONDS = 2.0
"""Between two looks at the head."""
_HEAD_SECONDS = 45.0
"""So long may the head be gone: after 60 s Ray itself ends the job's processes, without a word."""


class RayLauncher(RankLauncher):
    """A job of its own in the cluster. What it holds there is freed when this process ends, however it does."""

    def __init__(self, context: LaunchContext) -> None:
        self._context, self._options = context, context.options
        self._num_ranks = context.query.tensor * context.query.pipeline
        self._ray, self._is_ours = _connected(self._options)
        self.address: str = self._options["engine_address"] or self._ray.util.get_node_ip_address()
        self._group: Any = None
        self._actors: list[Any] = []
        self._order: list[int] = []
        """Which actor is in each place."""
        self._closing, self._lock = threading.Event(), threading.Lock()
        self._followers: list[threading.Thread] = []
        self._calls: list[threading.Thread] = []
        self._follow("llmk-ray-head", self._watch_head)

    def place(self) -> Sequence[RankPlace]:
        ray, bundle = self._ray, self._bundle()
        strategy = str(self._options["strategy"]).upper()
        self._group = ray.util.placement_group([bundle] * self._num_ranks, strategy=strategy)
        seconds = self._options["placement_seconds"]
        if not self._group.wait(seconds):
            missing = lacking(ray, bundle, self._num_ranks, strategy)
            self.close()
            what = f"no places for {self._num_ranks} ranks within {seconds:g} s: {missing}"
            hint = "add nodes, free some, or lower parallel.tensor, parallel.pipeline, or what [plugin.ray] takes"
            raise NotEnoughResources(what, hint=hint)
        self._actors = [self._actor(index, bundle) for index in range(self._num_ranks)]
        try:
            found = ray.get([actor.where.remote() for actor in self._actors], timeout=_ANSWER_SECONDS)
        except ray.exceptions.RayError as error:
            self.close()
            raise EngineDead(f"a node has a place for a rank, but could not start its actor: {error}") from error
        self._order, places = ordered(found, self._context.resource)
        return places

    def start(self, place: int, process: RankProcess) -> None:
        actor = self._actors[self._order[place]]
        environment = {str(name): str(value) for name, value in self._options["environment"].items()}
        run = actor.run.options(num_returns="streaming").remote(process.arguments, process.input, environment)
        self._follow(f"llmk-ray-rank{place}", self._follow_rank, place, run)

    def kill(self) -> None:
        self._closing.set()
        with self._lock:
            actors, self._actors = self._actors, []
        if actors:
            self._calls.append(_call(self._kill, actors))

    def close(self) -> None:
        self.kill()
        for call in (*self._calls, *self._followers):
            call.join(_ENDING_SECONDS)
        with self._lock:
            is_ours, self._is_ours, group, self._group = self._is_ours, False, self._group, None
        if group is not None or is_ours:
            _call(self._leave, group, is_ours).join(_ENDING_SECONDS)

    def _kill(self, actors: Sequence[Any]) -> None:
        """Without a head, this waits for it; the ranks end then as their connection to the engine does."""
        for actor in actors:
            if self._ray.is_initialized():  # else the call would connect again
                self._ray.kill(actor)

    def _leave(self, group: Any, is_ours: bool) -> None:
        if group is not None:
            self._ray.util.remove_placement_group(group)
        if is_ours:
            self._ray.shutdown()

    def _bundle(self) -> dict[str, float]:
        """What one rank takes."""
        taken = Counter({self._context.resource: self._options["devices_per_rank"]})
        if self._context.resource != "CPU":
            taken["CPU"] = self._options["cpus_per_rank"]
        return dict(taken | Counter(self._options["resources"]))

    def _actor(self, index: int, bundle: Mapping[str, float]) -> Any:
        ray = self._ray
        others = {name: amount for name, amount in bundle.items() if name not in ("CPU", "GPU")}
        where = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(self._group, index)
        kind = ray.remote(
            num_cpus=bundle.get("CPU", 0),
            num_gpus=bundle.get("GPU", 0),
            resources=others,
            scheduling_strategy=where,
            max_restarts=0,
        )(warden.Warden)
        return kind.remote()

    def _follow_rank(self, place: int, run: Any) -> None:
        """Passes on what a process writes, and how it ended."""
        how = ""
        try:
            for item in run:
                if not self._ray.is_initialized():
                    return
                what, text = self._ray.get(item)
                if what == "said":
                    self._context.said(place, text)
                else:
                    how = text
        except Exception as error:
            how = f"was lost with its node or its actor: {_first_line(error)}"
        if not self._closing.is_set():
            self._context.ended(place, how)

    def _watch_head(self) -> None:
        """Reports the loss of the head, without which no other loss would be."""
        host, _, port = self._ray.get_runtime_context().gcs_address.rpartition(":")
        heard = time.monotonic()
        while not self._closing.wait(_LOOK_SECONDS):
            try:
                socket.create_connection((host, int(port)), timeout=_LOOK_SECONDS).close()
                heard = time.monotonic()
            except OSError as error:
                if time.monotonic() - heard > _HEAD_SECONDS and not self._closing.is_set():
                    self._context.ended(0, f"is lost with the cluster's head at {host}:{port}: {error}")
                    return

    def _follow(self, name: str, run: Any, *args: object) -> None:
        self._followers.append(_call(run, *args, name=name))


def ordered(found: Sequence[Mapping[str, Any]], resource: str) -> tuple[list[int], list[RankPlace]]:
    """Which actor is in each place, and the places: those on one node next to each other, the fullest node first.
    ``found`` are the actors' answers."""
    nodes = [f"{each['host']} ({each['address']})" for each in found]
    per_node = Counter(nodes)
    order = sorted(range(len(found)), key=lambda actor: (-per_node[nodes[actor]], nodes[actor], actor))
    places = []
    for actor in order:
        there = [other for other in order if nodes[other] == nodes[actor]]
        held = [found[other]["devices"].get(resource, []) for other in there]
        devices = tuple(dict.fromkeys(device for each in held for device in each))
        own = found[actor]["devices"].get(resource, [])
        index = devices.index(own[0]) if own else there.index(actor)
        places.append(RankPlace(node=nodes[actor], address=found[actor]["address"], index=index, devices=devices))
    return order, places


def _connected(options: Mapping[str, Any]) -> tuple[Any, bool]:
    """Ray, connected to the cluster, and whether this is what connected it. Raises ConfigError where it can't be."""
    ray: Any = import_module("ray")
    ray.cloudpickle.register_pickle_by_value(warden)
    if ray.is_initialized():
        return ray, False
    address = options["address"]
    try:
        if address != "auto":  # Ray itself would try for minutes
            socket.create_connection(_host_and_port(address), timeout=_CONNECT_SECONDS).close()
        with _own_signals():
            ray.init(address=address, namespace=options["namespace"], log_to_driver=False, logging_level="warning")
    except ConfigError:
        raise
    except OSError as error:
        what = "this machine is in no Ray cluster" if address == "auto" else f"no Ray cluster answers at {address}"
        raise ConfigError(
            f"{what}: {_first_line(error)}",
            hint="start one with `ray start --head`, and join it with `ray start --address HEAD:PORT`",
        ) from error
    except Exception as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(
            f"the Ray cluster ({address}) can't be used from this machine: {said}",
            hint="have the same Python and the same Ray on all machines of the cluster",
        ) from error
    return ray, True


def _call(run: Any, *args: object, name: str = "llmk-ray") -> threading.Thread:
    """Calls in a thread what waits for Ray, or for its head."""
    thread = threading.Thread(target=run, args=args, name=name, daemon=True)
    thread.start()
    return thread


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keeps how this process handles the signals that Ray would take: the engine's leaves them to the server."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    own = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in own.items():
        signal.signal(number, handler)


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"plugin.ray.address = {address} is not host:port", hint='"auto" is where this machine is')
    return host, int(port)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)

"""The suite of launchers: places for processes, what reaches those, and which of their ends are reported.

The processes are small scripts, which connect to the kit. A launcher that has nothing to connect to, such as one of a
cluster where there is none, raises ConfigError when it is made; then only what it says without is checked.
``LauncherSpec.examples`` names a section of its plugin's configuration, a mapping.
"""

from __future__ import annotations

import multiprocessing
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

from llmk.api import (
    LaunchContext,
    LauncherSpec,
    LaunchQuery,
    RankProcess,
    Verdict,
)
from llmk.kernel.loader import load_object
from llmk_testing.bench import Bench
from llmk_testing.case import Case, Skip
from llmk_testing.launched import LATE, PATIENCE, RANKS, SAID, SCRIPT, TALKS, Launched, read, short, until
from llmk_testing.sections import options_of
from llmk_testing.suites import launcher_lives

ENGINES = 40
"""How many are given places at the same time."""
QUIET = 1.0
"""Seconds in which nothing more may be reported."""
_MISSED = 7
_SPREADS = ((1, 1), (2, 1), (2, 2), (1, 3), (4, 3), (64, 1), (16, 16), (1 << 14, 1))
"""Tensor parallel ranks and stages, up to more than a machine has places for."""
_ELSEWHERE = "its processes are on other machines, whose places are waited for"

_Check = Callable[["Launched"], str | None]
_Given = set[tuple[int, int]]


def cases(spec: LauncherSpec, bench: Bench) -> Iterator[Case]:
    """The cases of one launcher. What one of them had places for, those behind it must have, too."""
    given = _Given()

    def case(name: str, run: Callable[[], str | None]) -> Case:
        return Case(spec.id, "launcher", name, run)

    yield case("says what it can start, alike each time, with a reason where it can't", partial(_answers, spec, bench))
    for name, check in (
        ("there is a place for each rank, on machines that differ", check_places),
        ("each process gets its own input, whole, which stays open", check_input),
        ("what a process on another machine writes arrives, by its place", check_lines),
        ("starting does not wait for a process to read its input", check_late),
        ("lines come as they were written, also errors, and what is not UTF-8", check_odd_lines),
        ("the end of a process is reported once, with how it ended", check_end),
        ("an end without an error is reported, and one by a signal in words", check_other_ends),
        ("processes that are killed end, and are not reported", check_kill),
        ("those that are left are killed when one has ended", check_kill_rest),
        ("closing twice gives the places back", check_close),
        ("as many engines have places after others were closed as before", check_all_places),
        ("a second engine's places are numbered as the first one's are", check_second),
        ("processes end with an engine that is killed", check_orphans),
        ("what a process started is killed with it", launcher_lives.check_family),
        ("what a process left is killed when it ends, which is heard", launcher_lives.check_left),
        ("an end is reported after the last line", launcher_lives.check_last_lines),
        ("a process that closes its output goes on", launcher_lives.check_closed_output),
        ("nothing is started after kill", launcher_lives.check_late_start),
        ("it can be killed and closed before anything was started", launcher_lives.check_idle),
        ("it can be killed where an end is reported", launcher_lives.check_stop_from_report),
        (
            "its Python, environment and folder are the engine's, and no one sees its input",
            launcher_lives.check_here,
        ),
        ("processes have ended when close returns", launcher_lives.check_closed),
    ):
        yield case(name, partial(_run, spec, bench, given, check))
    yield case("each rank of each stage has a place, or none is reserved", partial(_counts, spec, bench, given))


def check_places(launched: Launched) -> str:
    """Devices of a machine have numbers from 0; a machine has one name, and one address."""
    places = launched.places
    query = launched.context.query
    ranks = query.tensor * query.pipeline
    assert len(places) == ranks, f"place() returned {len(places)} places for {query.tensor} x {query.pipeline} ranks"
    has = {(bool(place.node), bool(place.address)) for place in places}
    assert has <= {(True, True), (False, False)}, f"a place has a node and no address, or an address alone: {places}"
    is_remote = bool(launched.launcher.address)
    assert has == {(is_remote, is_remote)}, f"places are {places}, and the launcher's address is that of {is_remote=}"
    for node in {place.node for place in places}:
        indices = sorted(place.index for place in places if place.node == node)
        assert indices == list(range(len(indices))), f"the devices of {node or 'this machine'} are {indices}"
        named = {place.devices for place in places if place.node == node}
        good = len(named) == 1 and all(not names or len(set(names)) == len(names) == len(indices) for names in named)
        assert good, f"the {len(indices)} ranks of {node or 'this machine'} have devices named {named}, not one each"
    nodes = [place.node for place in places]
    turns = 1 + sum(one != other for one, other in pairwise(nodes))
    assert turns == len(set(nodes)), f"places of one machine are not next to each other: {nodes}"
    return f"on {len(set(nodes))} machines"


def check_input(launched: Launched) -> None:
    """A megabyte does not fit a pipe."""
    launched.start()
    short = {place: length for place, length in launched.lengths.items() if length != 1 << 20}
    assert not short, f"a process got {next(iter(short.values()))} bytes of {1 << 20}"
    time.sleep(QUIET)
    assert not launched.ended, f"processes whose input should stay open ended: {launched.ended}"


def check_lines(launched: Launched) -> str | None:
    """They name the rank in the engine's log."""
    launched.start(64)
    if not launched.launcher.address:
        return "they inherit standard error"
    wanted = [(place, f"a line {place + 1}") for place in range(RANKS)]
    until(lambda: set(wanted) <= set(launched.said), lambda: f"{launched.said} was said, expected {wanted}")
    return None


def check_late(launched: Launched) -> None:
    """A rank may import for a minute before it reads, and the others must not wait for it."""
    size, place = 4 << 20, 1
    with socket.create_server((launched.launcher.address or "127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE)
        arguments = ("-c", LATE, *map(str, server.getsockname()[:2]), str(size))
        process = RankProcess(arguments=arguments, input=bytes([place + 1]) * size)
        starting = threading.Thread(target=launched.launcher.start, args=(place, process), daemon=True)
        starting.start()
        link, _ = server.accept()
        launched.links[place] = link
        starting.join(PATIENCE / 5)
        waits = starting.is_alive()
        link.sendall(b"g")
        link.settimeout(PATIENCE)
        length = int(read(link, 80)[64:])
    assert not waits, "start() waits until the process has read its input"
    assert length == size, f"a process that reads late got {length} bytes of {size}"


def check_odd_lines(launched: Launched) -> str | None:
    """Tracebacks are indented, and C libraries write what they like."""
    launched.start(64, TALKS)
    time.sleep(QUIET)
    if not launched.launcher.address and not launched.said:
        return "they inherit standard error"
    for link in launched.links.values():
        link.close()
    for place in range(RANKS):

        def lines(place: int = place) -> list[str]:
            return [line for number, line in list(launched.said) if number == place]

        until(lambda: "no end" in lines(), lambda: f"the last line, without an end, is missing in {short(lines())}")
        for wanted in SAID:
            assert wanted in lines(), f"the line {wanted[:20]!r} is missing in {short(lines())}"
        broken = [line for line in lines() if line.startswith("not ") and line.endswith(" UTF-8")]
        assert broken, f"a line that is not UTF-8 is missing in {short(lines())}"
    return None


def check_other_ends(launched: Launched) -> str:
    """A rank that ends has failed the others, however it came."""
    launched.start(64)
    launched.links[0].sendall(bytes([0]))
    launched.links[1].sendall(bytes([255]))
    places = set(range(RANKS))
    until(
        lambda: {place for place, _ in list(launched.ended)} == places,
        lambda: f"ends with code 0, in place 0, and by a signal, in place 1, were reported as {launched.ended}",
    )
    how = dict(launched.ended)
    assert how[1].strip(), "the end by a signal was reported without how it came"
    assert "-9" not in how[1], f"the end by a signal was reported as {how[1]!r}; say which signal it was"
    known = launched.launcher.address or "KILL" in how[1].upper() or re.search(r"\b(9|137)\b", how[1])
    assert known, f"an end by SIGKILL, on this machine, was reported as {how[1]!r}; say which signal it was"
    return f"{how[0]}; {how[1]}"


def check_end(launched: Launched) -> None:
    """The other one runs on."""
    launched.start(64)
    launched.links[1].sendall(bytes([_MISSED]))
    until(lambda: bool(launched.ended), lambda: f"the end of a process was not reported within {PATIENCE:g} s")
    time.sleep(QUIET)
    assert len(launched.ended) == 1, f"the end of one process was reported as {launched.ended}"
    place, how = launched.ended[0]
    assert place == 1, f"the end of the process in place 1 was reported of place {place}"
    assert str(_MISSED) in how, f"a process that ended with exit code {_MISSED} {how!r}"


def check_kill(launched: Launched) -> None:
    """From any thread, as the engine does it where one of them ended."""
    launched.start(64)
    killing = threading.Thread(target=lambda: [launched.launcher.kill() for _ in range(2)])
    killing.start()
    killing.join(PATIENCE)
    for place, link in launched.links.items():
        _check_ended(link, f"place {place}, after kill()")
    time.sleep(QUIET)
    assert not launched.ended, f"processes that were killed were reported: {launched.ended}"


def check_close(launched: Launched) -> None:
    """A model that is loaded again needs the same places."""
    launched.start(64)
    launched.launcher.close()
    launched.launcher.close()
    again = Launched(launched.make, launched.context)
    try:
        again.open()
    except Skip as reason:
        raise AssertionError(f"after close, another can't start: {reason}") from reason
    finally:
        again.close()


def check_kill_rest(launched: Launched) -> None:
    """A rank has crashed, and the others would wait for it for ever."""
    launched.launcher.close()
    for crashed in range(RANKS):
        again = Launched(launched.make, launched.context)
        with _opened(again):
            again.start(64)
            again.links[crashed].sendall(bytes([_MISSED]))
            until(lambda again=again: bool(again.ended), lambda: "the end of a process was not reported")  # type: ignore[misc]
            again.launcher.kill()
            for place, link in again.links.items():
                _check_ended(link, f"place {place}, after kill(), when that in place {crashed} had ended")


def check_all_places(launched: Launched) -> str:
    """Up to :data:`ENGINES` at a time, of which those behind the last place are refused."""
    if launched.launcher.address:
        return _ELSEWHERE
    launched.launcher.close()
    first, second = _engines(launched), _engines(launched)
    assert second >= first, f"{first} engines had places, and when they were closed, only {second}"
    return f"{first} engines"


def check_second(launched: Launched) -> str:
    """The numbers are those of the devices that its ranks have, no matter what others have."""
    if launched.launcher.address:
        return _ELSEWHERE
    second = Launched(launched.make, launched.context)
    with _opened(second):
        both = {name for place in launched.places for name in place.devices} & {
            name for place in second.places for name in place.devices
        }
        assert not both, f"two engines have the devices {', '.join(sorted(both))} at the same time"
        return check_places(second)


def check_orphans(launched: Launched) -> str | None:
    """By the system, say: it can't end them itself, nor give its places back."""
    if launched.launcher.address:
        return _ELSEWHERE
    launched.launcher.close()
    before = _engines(launched)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE)
        # A fork has the modules as they are here; it does nothing but start the processes.
        engine = multiprocessing.get_context("fork").Process(target=_engine, args=(launched, server), daemon=True)
        engine.start()
        try:
            while len(launched.links) < RANKS:
                launched.take(server)
        finally:
            engine.kill()
            engine.join()
    for place, link in launched.links.items():
        _check_ended(link, f"place {place}, after the engine was killed")
    after = _engines(launched)
    if after < before:
        time.sleep(QUIET)
        after = _engines(launched)
    assert after >= before, f"{before} engines had places, and when one of them was killed, {after} later ones have"
    return f"{before} engines"


def _engine(launched: Launched, server: socket.socket) -> None:
    launched.open()
    host, port = server.getsockname()[:2]
    server.close()
    for place in range(RANKS):
        arguments = ("-c", SCRIPT, host, str(port), "64")
        launched.launcher.start(place, RankProcess(arguments=arguments, input=bytes([place + 1]) * 64))
    time.sleep(2 * PATIENCE)


def _engines(launched: Launched) -> int:
    """How many have places at the same time, on devices of their own."""
    taken: list[str] = []
    with ExitStack() as engines:
        for number in range(ENGINES):
            try:
                one = engines.enter_context(_opened(Launched(launched.make, launched.context)))
            except Skip:
                return number
            for name in {name for place in one.places for name in place.devices}:
                assert name not in taken, f"engine {number + 1} has the device {name}, as one before it that still runs"
                taken.append(name)
    return ENGINES


def _check_ended(link: socket.socket, where: str) -> None:
    link.settimeout(PATIENCE)
    try:
        assert not link.recv(1)
    except TimeoutError:
        raise AssertionError(f"the process in {where}, ran on for {PATIENCE:g} s") from None
    except OSError:
        return


def _answers(spec: LauncherSpec, bench: Bench) -> str:
    query = LaunchQuery(platform=bench.facts)
    queries = [query, replace(query, tensor=2), replace(query, pipeline=2), replace(query, tensor=1 << 20)]
    for each in queries:
        first, again = spec.supports(each), spec.supports(each)
        assert isinstance(first, Verdict), f"supports returned {first!r} instead of a Verdict"
        assert first == again, f"supports said {first} of a query, and then {again} of the same"
        said = all(reason.code for reason in first.reasons)
        assert first or (first.reasons and said), f"supports refuses without a reason: {each}"
    return f"{len(queries)} queries"


def _run(spec: LauncherSpec, bench: Bench, given: _Given, check: _Check) -> str | None:
    query = LaunchQuery(platform=bench.facts, tensor=RANKS)
    if not (verdict := spec.supports(query)):
        raise Skip("; ".join(map(str, verdict.reasons)))
    with _opened(_made(spec, bench, given, query)) as launched:
        return check(launched)


def _made(spec: LauncherSpec, bench: Bench, given: _Given, query: LaunchQuery) -> Launched:
    section: Mapping[str, Any] = load_object(spec.examples) if spec.examples else {}
    options = options_of(spec.id, bench, section)
    context = LaunchContext(query=query, resource="CPU", ended=_ignore, said=_ignore, options=options)
    return Launched(load_object(spec.implementation), context, given)


def _counts(spec: LauncherSpec, bench: Bench, given: _Given) -> str:
    """One after the other, up to what there are no places for; then as many places can be reserved as before."""
    most = LaunchQuery(platform=bench.facts)
    tried: list[str] = []
    for tensor, pipeline in _SPREADS:
        query = LaunchQuery(platform=bench.facts, tensor=tensor, pipeline=pipeline)
        if not spec.supports(query):
            continue
        launched = _made(spec, bench, given, query)
        try:
            launched.open()
        except Skip as reason:
            if not tried:
                raise
            _check_nothing_kept(_made(spec, bench, given, most), str(reason), launched)
            break
        with closing(launched):
            check_places(launched)
        tried.append(f"{tensor} x {pipeline}")
        most = query if tensor * pipeline > most.tensor * most.pipeline else most
    return ", ".join(tried)


def _check_nothing_kept(most: Launched, reason: str, failed: Launched) -> None:
    assert reason.strip(" :").count(" ") > 5, f"NotEnoughResources says {reason!r}: say what is missing, and where"
    query = most.context.query
    try:
        most.open()
    except Skip as again:
        was = f"{query.tensor} x {query.pipeline} ranks, which had places before"
        raise AssertionError(f"after a place() that raised, there are none for {was}: {again}") from again
    finally:
        most.close()
        failed.close()


def _ignore(place: int, text: str) -> None:
    """Nothing is looked at."""


@contextmanager
def _opened(launched: Launched) -> Iterator[Launched]:
    try:
        launched.open()
        yield launched
    finally:
        launched.close()

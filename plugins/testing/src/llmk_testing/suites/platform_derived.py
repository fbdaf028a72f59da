"""The part of the platform suite that derives further machines from those of the examples: without one of the
processor's extensions, with other devices visible, and with other processors for the process."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from llmk.api import Host, PlatformFacts, PlatformSpec, Probe
from llmk_testing.case import Skip
from llmk_testing.platform_example import PlatformExample
from llmk_testing.suites.platform_machines import examples_of

_CPUINFO = "/proc/cpuinfo"
_FLAGS = re.compile(r"^(flags|Features|features)([ \t]*:)(.*)$", re.MULTILINE)
_MORE = 3
"""So many numbers after the last device's are tried."""

CORES = """
import os, sys, torch
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch
from llmk.api import Host
from llmk.kernel.loader import load_object
if not hasattr(os, "sched_getaffinity"):  # on macOS
    sys.exit()
probe, make = map(load_object, sys.argv[1:3])
facts, found, CPUS = probe(Host()).facts, Host.path, 8
BELOW, STATUS = "/sys/devices/system", "/proc/self/status"
# Cores of one, two and four threads, which are neighbours or far apart, and of both kinds in one processor.
ALONE, NEAR, APART, FOUR, MIXED = (
    [set(core(cpu)) for cpu in range(CPUS)]
    for core in (
        lambda cpu: (cpu,),
        lambda cpu: (cpu, cpu ^ 1),
        lambda cpu: (cpu, cpu ^ 4),
        lambda cpu: range(cpu & 4, (cpu & 4) + 4),
        lambda cpu: (cpu,) if cpu & 4 else (cpu, cpu ^ 1),
    )
)

def threads(siblings, own):
    with TemporaryDirectory() as folder:
        files = {"cpu/online": "0-7", "cpu/present": "0-7", "node/online": "0", "node/node0/cpulist": "0-7"}
        for cpu, both in enumerate(siblings):
            listed = ",".join(map(str, sorted(both)))
            names = {"thread_siblings_list": listed, "core_cpus_list": listed, "core_id": min(both)}
            names |= {"physical_package_id": 0}
            files |= {f"cpu/cpu{cpu}/topology/{name}": value for name, value in names.items()}
        given = {f"{BELOW}/{path}": text for path, text in files.items()}
        given[STATUS] = "Cpus_allowed_list:\t" + ",".join(map(str, sorted(own)))
        for path, text in given.items():
            file = Path(f"{folder}{path}")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{text}\\n")

        def path(host, wanted):
            here = host.root == Path("/") and wanted.startswith((BELOW, STATUS))
            return Path(f"{folder}{wanted}") if here else found(host, wanted)

        with (
            patch.object(Host, "path", path),
            patch.object(os, "sched_getaffinity", lambda process: set(own)),
            patch.object(os, "sched_setaffinity", lambda process, cpus: None),
            patch.object(os, "cpu_count", lambda: CPUS),
        ):
            torch.set_num_threads(1)
            make(facts).device.setup(0)
            return torch.get_num_threads()

for what, machines in {
    "one CPU": ((ALONE, {6}), (NEAR, {1}), (APART, {7}), (FOUR, {2}), (MIXED, {3}), (MIXED, {5})),
    "both threads of one core": ((NEAR, {0, 1}), (NEAR, {6, 7}), (APART, {0, 4}), (APART, {3, 7}), (MIXED, {2, 3})),
    "one thread of each of two cores": (
        *((ALONE, {0, 1}), (NEAR, {0, 2}), (NEAR, {5, 7}), (APART, {0, 1}), (APART, {4, 6}), (FOUR, {1, 6})),
        *((MIXED, {0, 2}), (MIXED, {1, 4}), (MIXED, {6, 7})),
    ),
    "four threads of three cores": ((NEAR, {0, 1, 2, 4}), (APART, {1, 5, 2, 3}), (MIXED, {0, 1, 4, 7})),
}.items():
    counts = {f"{sorted(own)} of {siblings[min(own)]}": threads(siblings, own) for siblings, own in machines}
    assert len(set(counts.values())) == 1, f"a process that has {what} gets, by default, so many threads: {counts}"
"""


def check_needs(spec: PlatformSpec) -> str:
    """Each extension without which the facts are others is one that the example ``needs``; one whose name only starts
    or ends alike is not taken for it."""
    given, open_ones = 0, []
    for example in examples_of(spec):
        with TemporaryDirectory(prefix="llmk-") as folder:
            deciding = _deciding(spec, example, Path(folder))
        given += bool(example.needs)
        if deciding and not example.needs:
            open_ones.append(f"{example.name}: {', '.join(sorted(deciding))}")
        if example.needs:
            missing, more = sorted({*example.needs} - deciding), sorted(deciding - {*example.needs})
            assert not missing, f"{example.name}: it needs {', '.join(missing)}, without which its facts are the same"
            assert not more, f"{example.name}: its facts are others without {', '.join(more)}, which it does not need"
    assert given or not open_ones, (
        "no example says which of the processor's extensions it needs; where these are right, put them into"
        f" PlatformExample.needs: {'; '.join(open_ones)}"
    )
    if not given:
        raise Skip("no example's facts depend on one of the processor's extensions")
    return f"{given} machines"


def _deciding(spec: PlatformSpec, example: PlatformExample, folder: Path) -> set[str]:
    """The extensions without which the facts that the example names are others."""
    text = example.files.get(_CPUINFO)
    if example.facts is None or not isinstance(text, str) or not (line := _FLAGS.search(text)):
        return set()
    host = example.host(folder)

    def said(changed: str) -> Any:
        host.path(_CPUINFO).write_text(changed)
        return _said(spec.probe(host), example.facts or {})

    right, found = said(text), set()
    for word in dict.fromkeys(line[3].split()):
        without = said(_without(text, word))
        if without != right:
            found.add(word)
            for other in (f"{word}_odd", f"odd_{word}"):
                alike = said(_without(text, word, other))
                assert alike == without, f"{example.name}: {other} is taken for {word}: the facts are {alike}"
    return found


def _without(text: str, word: str, other: str = "") -> str:
    """``/proc/cpuinfo`` without an extension, or with another one in its place."""

    def line(match: re.Match[str]) -> str:
        kept = [other if each == word else each for each in match[3].split()]
        return f"{match[1]}{match[2]} {' '.join(filter(None, kept))}"

    return _FLAGS.sub(line, text)


def _said(answer: Probe, names: Mapping[str, Any]) -> Any:
    return {name: getattr(answer.facts, name) for name in names} if answer.facts else answer.verdict


def check_devices(spec: PlatformSpec) -> str:
    """Each of an example's ``devices`` can be named alone, and no other number names one."""
    if not spec.ranks.visible:
        raise Skip("RankRules.visible names no variable")
    tried, open_ones = 0, []
    for example in examples_of(spec):
        if example.devices:
            with TemporaryDirectory(prefix="llmk-") as folder:
                bare = {name: value for name, value in example.environ.items() if name not in spec.ranks.visible}
                _check_devices(spec, example, replace(example, environ=bare).host(Path(folder)))
            tried += 1
        elif (example.facts or {}).get("num_devices", 1) > 1:
            open_ones.append(example.name)
    assert tried or not open_ones, (
        f"{', '.join(spec.ranks.visible)} lists devices, and no example says by which names: put them into"
        f" PlatformExample.devices of {', '.join(open_ones)}"
    )
    return f"{tried} machines"


def _check_devices(spec: PlatformSpec, example: PlatformExample, host: Host) -> None:
    alone = {}
    for name in example.devices:
        answer = _with_visible(spec, host, name)
        assert answer.facts, f"{example.name}: with {name} alone, the probe refuses: {answer.verdict}"
        found = answer.facts.num_devices
        assert found == 1, f"{example.name}: with {name} alone, the probe finds {found} devices"
        alone[name] = answer.facts
    for name in _others(example):
        answer = _with_visible(spec, host, name)
        assert not answer.facts, f"{example.name}: {name} is no device, and with it the probe finds {answer.facts}"
    _check_kinds(spec, example, host, alone)
    if len(set(alone.values())) == 1:
        for order in (example.devices, example.devices[::-1]):
            answer = _with_visible(spec, host, *order)
            found = answer.facts.num_devices if answer.facts else 0
            assert found == len(order), f"{example.name}: with {', '.join(order)}, the probe finds {found} devices"


def _check_kinds(spec: PlatformSpec, example: PlatformExample, host: Host, alone: Mapping[str, PlatformFacts]) -> None:
    """Of two devices of different kinds, the first that is listed decides, or the kind does, and not their numbers."""
    first, kinds = True, defaultdict(set)
    for pair in permutations(example.devices, 2):
        own = [alone[name].arch for name in pair]
        answer = _with_visible(spec, host, *pair)
        if own[0] == own[1] or answer.facts is None:
            continue
        found = answer.facts.arch
        assert found in own, f"{example.name}: with {', '.join(pair)}, which are {own}, the facts are of {found}"
        first = first and found == own[0]
        kinds[frozenset(own)].add(found)
    assert first or all(len(found) == 1 for found in kinds.values()), (
        f"{example.name}: where two devices of different kinds are listed, neither the order nor the kind says which is"
        " used"
    )


def _with_visible(spec: PlatformSpec, host: Host, *names: str) -> Probe:
    return spec.probe(replace(host, environ={**host.environ, **spec.ranks.environment(names, "")}))


def _others(example: PlatformExample) -> Iterator[str]:
    """Numbers of no device of it."""
    numbers = [int(name) for name in example.devices if name.isdecimal()]
    for number in range(max(numbers, default=-1) + 1 + _MORE):
        if str(number) not in example.devices:
            yield str(number)

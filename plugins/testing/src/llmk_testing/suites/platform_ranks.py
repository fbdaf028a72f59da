"""The part of the platform suite that asks what a platform says of its ranks, and of odd variables and files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from llmk.api import Host, PlatformSpec, RankRules
from llmk.api.errors import describe
from llmk_testing.case import Skip
from llmk_testing.platform_example import PlatformExample
from llmk_testing.suites.platform_machines import answers, examples_of

_SPREADS = ((1, 1), (2, 1), (1, 3), (4, 2), (3, 2), (8, 1))
"""Tensor parallel ranks and stages."""
_DEVICES, _INTERFACE = ("5", "GPU-2c7e", "0"), "eth7"
_ODD_VALUES = ("", " ", "-1", "0", "0,0", "0, 1", "977", "GPU-8932f937", "all", "none", ",", "0:1")
"""What a variable that lists devices may hold."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_ranks(spec: PlatformSpec) -> str:
    """Each place has one rank, and a rank's process gets its devices and its network interface as texts, of which the
    platform's own environment keeps nothing."""
    rules, before = spec.ranks, dict(os.environ)
    assert isinstance(rules.resource, str), f"ranks.resource is {rules.resource!r}, not a text"
    assert rules.resource.strip(), "ranks.resource is empty, so that clusters have no name for a device"
    for what in ("resource", "network", "visible"):
        meant, names = getattr(type(rules), what, None), getattr(rules, what)
        dropped = what in _attributes(type(rules)) and names != meant and names == getattr(RankRules(), what)
        assert not dropped, (
            f"ranks.{what} is {names!r}, and not {meant!r} as {type(rules).__name__} says: RankRules is a dataclass,"
            f" whose constructor sets its own default; call it with {what}={meant!r}"
        )
    for what in ("network", "visible"):
        names = getattr(rules, what)
        good = isinstance(names, tuple) and all(isinstance(name, str) and _NAME.fullmatch(name) for name in names)
        assert good, f"ranks.{what} is {names!r}, not a tuple of names of variables"
    for tensor, pipeline in _SPREADS:
        ranks = [rules.rank_at(place, tensor, pipeline) for place in range(tensor * pipeline)]
        assert sorted(ranks) == list(range(len(ranks))), (
            f"of {tensor} x {pipeline} ranks, rank_at puts {ranks} in the places, where each must be once"
        )
    for devices, interface in ((_DEVICES, _INTERFACE), (_DEVICES[:1], ""), ((), _INTERFACE), ((), "")):
        found = rules.environment(devices, interface)
        asked = f"environment({list(devices)}, {interface!r})"
        texts = isinstance(found, Mapping) and all(isinstance(one, str) for pair in found.items() for one in pair)
        assert texts, f"{asked} is {found!r}, not texts by the names of variables"
        for name in rules.visible:
            held = found.get(name, "")
            places = [held.find(device) for device in devices]
            assert min(places, default=0) >= 0, f"{asked} sets {name} to {held!r}, without all devices"
            assert places == sorted(places), f"{asked} sets {name} to {held!r}, in another order"
            assert devices or name not in found, f"{asked} sets {name} to {held!r}, where all devices are the ranks'"
        for name in rules.network:
            given = found.get(name, "")
            assert interface in given, f"{asked} sets {name} to {given!r}, not to the interface"
            assert interface or name not in found, f"{asked} sets {name} to {given!r}, where there is no interface"
    assert dict(os.environ) == before, "environment() changes the variables of this process"
    return rules.resource


def _attributes(rules: type[RankRules]) -> set[str]:
    """What the classes between ``rules`` and :class:`~llmk.api.RankRules` set."""
    own = rules.__mro__[: rules.__mro__.index(RankRules)] if RankRules in rules.__mro__ else ()
    return {name for each in own for name in vars(each)}


def check_visible(spec: PlatformSpec) -> str:
    """What a process is given by ``ranks.environment``, its probe understands; other values get an answer."""
    if not spec.ranks.visible:
        raise Skip("RankRules.visible names no variable")
    tried = 0
    for example in examples_of(spec):
        for name in spec.ranks.visible:
            for value in _ODD_VALUES:
                tried += 1
                own = replace(example, environ={**example.environ, name: value})
                _checked(spec, own, f"{example.name}, with {name}={value!r}")
        tried += _one_device(spec, example)
    return f"{tried} machines"


def _one_device(spec: PlatformSpec, example: PlatformExample) -> bool:
    """Whether the machine has several devices, of which a process that is given the first one has one."""
    bare = {name: value for name, value in example.environ.items() if name not in spec.ranks.visible}
    with TemporaryDirectory(prefix="llmk-") as folder:
        host = replace(example, environ=bare).host(Path(folder))
        every = spec.probe(host).facts
        one = spec.probe(replace(host, environ={**bare, **spec.ranks.environment(("0",), "")})).facts
    if every is None or every.num_devices < 2 or one is None:
        return False
    assert one.num_devices == 1, (
        f"{example.name}: of {every.num_devices} devices a process gets the first one by ranks.environment, and its"
        f" probe finds {one.num_devices}"
    )
    return True


def check_garbled(spec: PlatformSpec) -> str:
    """Below ``/sys``, a value may be a word, such as ``max``; lines may be cut off, numbers huge, and files no text."""
    tried = 0
    for example in examples_of(spec):
        for what, files in _garbled(example):
            tried += 1
            _checked(spec, replace(example, files=files), f"{example.name}, {what}")
    return f"{tried} machines"


def _garbled(example: PlatformExample) -> Iterator[tuple[str, Mapping[str, str | bytes]]]:
    for path, text in example.files.items():
        raw = text if isinstance(text, bytes) else text.encode()
        # The kernel's own files below /proc have numbers where they have any.
        words = raw if path.startswith("/proc") else re.sub(rb"[0-9]+", b"max", raw)
        for what, odd in (
            ("has words in place of numbers", words),
            ("has no line that is whole", b"\n".join(line[: len(line) // 2] for line in raw.splitlines())),
            ("has numbers without end", re.sub(rb"[0-9]+", b"99999999999999999999", raw)),
            ("is no text", b"\xff\xfe\x00" + raw[::-1]),
        ):
            yield f"whose {path} {what}", {**example.files, path: odd}


def _checked(spec: PlatformSpec, example: PlatformExample, what: str) -> None:
    with TemporaryDirectory(prefix="llmk-") as folder:
        answers(spec, example, Path(folder), what)


def check_options(spec: PlatformSpec) -> None:
    """A probe gets the section of its plugin before anything has checked it."""
    for options in ({"devices": 7}, {"": None}, {"emulate": [1]}, {"enabled": {"odd": "odd"}}):
        try:
            spec.probe(replace(Host(), options=options))
        except Exception as error:
            raise AssertionError(f"with the options {options}, the probe raises {describe(error)}") from error

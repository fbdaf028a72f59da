"""The part of the platform suite that compares facts: of machines whose files are given, and of this one again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from llmk.api import Host, PlatformFacts, PlatformSpec
from llmk.api.errors import describe
from llmk.kernel.loader import load_object
from llmk_testing.bench import Bench
from llmk_testing.case import Skip
from llmk_testing.platform_example import PlatformExample
from llmk_testing.suites.platform_elsewhere import MORE_LINES, elsewhere, without_limit

_LINES = 40
"""Of each file, the first so many are left out in turn."""
_TAKEN = 64 << 20
"""Bytes of a tensor that is there during a probe."""


def check_machines(spec: PlatformSpec) -> str:
    """Each is probed twice, as a probe must not remember; and with lines that files have and that mean nothing here,
    and control groups without a limit."""
    examples = examples_of(spec)
    for one in (*examples, *examples, *filter(None, map(_with_more, examples))):
        with TemporaryDirectory(prefix="llmk-") as folder:
            _check(spec, one, one.host(Path(folder)))
    silent = [one.name for one in examples if (one.facts or {}).get("memory_bytes") and not one.said]
    if silent:
        return f"{len(examples)} machines; PlatformExample.said has nothing of the memory of {', '.join(silent)}"
    return f"{len(examples)} machines"


def check_alone(spec: PlatformSpec) -> str:
    """What is said of a machine comes from its ``Host``: not from this machine's files, processors and environment."""
    examples = examples_of(spec)
    variables = {name: value for example in examples for name, value in example.environ.items()}
    for example in examples:
        with TemporaryDirectory(prefix="llmk-") as folder:
            host = example.host(Path(folder))
            right = spec.probe(host)
            lies = {name: value for name, value in variables.items() if name not in example.environ}
            with elsewhere(Path(folder), lies) as opened:
                found = spec.probe(host)
        assert not opened, f"of {example.name}, the probe asks this machine: {', '.join(sorted(opened))}"
        assert found == right, f"of {example.name}, the probe returns {right}, and on another machine {found}"
    return f"{len(examples)} machines"


def _with_more(example: PlatformExample) -> PlatformExample | None:
    """The same machine, with control groups that limit nothing, and whose files have further lines; ``None``: it has
    none of these files."""
    files = {**example.files, **without_limit(example.files)}
    for path, more in MORE_LINES.items():
        text = files.get(path)
        if isinstance(text, str) and text.strip():
            lines = [line for line in more if line.partition(":")[0] not in text]
            files[path] = "".join(f"{line}\n" for line in (text.rstrip("\n"), *lines))
    changed = replace(example, name=f"{example.name}, with lines and control groups that limit nothing", files=files)
    return changed if files != example.files else None


def check_gaps(spec: PlatformSpec) -> str:
    """A machine may lack any of the files, and any of their lines; what is said of it may be less, but is an answer."""
    tried = 0
    for example in examples_of(spec):
        for what, host in _with_gaps(example):
            tried += 1
            with TemporaryDirectory(prefix="llmk-") as folder:
                answers(spec, replace(example, files=host), Path(folder), f"{example.name}, {what}")
    return f"{tried} machines"


def _with_gaps(example: PlatformExample) -> Iterator[tuple[str, Mapping[str, str | bytes]]]:
    for path, text in example.files.items():
        yield f"without {path}", {other: kept for other, kept in example.files.items() if other != path}
        yield f"whose {path} is empty", {**example.files, path: ""}
        lines = text.splitlines(keepends=True) if isinstance(text, str) else []
        for at, line in enumerate(lines[:_LINES]):
            rest = "".join(lines[:at] + lines[at + 1 :])
            yield f"whose {path} has no line {line.strip()[:40]!r}", {**example.files, path: rest}


def answers(spec: PlatformSpec, example: PlatformExample, folder: Path, what: str) -> None:
    """Raises AssertionError unless the probe, and the functions that the example names, say something of a machine."""
    host = example.host(folder)
    try:
        answer = spec.probe(host)
        for function, _ in example.said:
            function(host)
    except Exception as error:
        raise AssertionError(f"of {what}, it raises {describe(error)}") from error
    assert answer.verdict or answer.verdict.reasons, f"of {what}, the probe refuses without a reason"
    assert not answer.verdict or answer.facts, f"of {what}, the probe returns no facts"
    good = answer.facts is None or (bool(answer.facts.dtypes) and answer.facts.memory_bytes >= 0)
    assert good, f"of {what}, the probe returns {answer.facts}"


def check_same(spec: PlatformSpec, bench: Bench) -> None:
    """Facts are of the machine, not of what runs on it."""
    before, total = spec.probe(Host()).facts, bench.platform.memory.total()
    taken = torch.ones(_TAKEN, dtype=torch.uint8, device=bench.device)
    bench.platform.device.synchronize()
    after, still = spec.probe(Host()).facts, bench.platform.memory.total()
    assert taken.numel() == _TAKEN
    assert before == after, f"with {_TAKEN} bytes taken, the probe returns {after}, before it {before}"
    assert total == still, f"with {_TAKEN} bytes taken, total() is {still}, before it {total}"


def _check(spec: PlatformSpec, example: PlatformExample, host: Host) -> None:
    answer = spec.probe(host)
    if example.facts is None:
        codes = [reason.code for reason in answer.verdict.reasons]
        assert not answer.verdict, f"{example.name}: the probe says that the platform is usable"
        assert codes == list(example.refused), f"{example.name}: refused for {codes}, expected {list(example.refused)}"
    else:
        assert answer.verdict, f"{example.name}: the probe refuses: {'; '.join(map(str, answer.verdict.reasons))}"
        assert answer.facts is not None, f"{example.name}: the probe returns no facts"
        for name, right in example.facts.items():
            found = getattr(answer.facts, name)
            assert found == right, f"{example.name}: {name} is {found!r}, expected {right!r}"
        if example.known:
            _check_known(spec, example, answer.facts)
    for function, right in example.said:
        found = function(host)
        name = getattr(function, "__name__", repr(function))
        assert found == right, f"{example.name}: {name} returns {found!r}, expected {right!r}"


def _check_known(spec: PlatformSpec, example: PlatformExample, facts: PlatformFacts) -> None:
    bare = replace(facts, memory_bytes=0, device_name="")
    known = [replace(each, memory_bytes=0, device_name="") for each in spec.known]
    assert bare in known, f"{example.name}: none of the known machines has its facts, {bare}"


def examples_of(spec: PlatformSpec) -> Sequence[PlatformExample]:
    """The machines that a platform's spec names. Raises Skip if it names none."""
    if not spec.examples:
        raise Skip("PlatformSpec.examples names no machines (llmk_testing.platform_example)")
    found: Sequence[PlatformExample] = load_object(spec.examples, plugin=spec.id)
    good = bool(found) and all(isinstance(one, PlatformExample) for one in found)
    assert good, f"{spec.examples} is {found!r}, expected a sequence of PlatformExample"
    return found

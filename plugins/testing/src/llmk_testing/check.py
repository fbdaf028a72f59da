"""Checks distributions, each in a process of its own, and collects the results on a card."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import IO, Any

import importlib_metadata as metadata
from packaging.utils import canonicalize_name

from llmk.api import ENTRY_POINT_GROUP, PluginError
from llmk.engine.processes.spawn import waiting
from llmk.kernel.interpreter import PYTHON
from llmk_testing.card import Card
from llmk_testing.case import Result
from llmk_testing.child import Job

LISTING = "its cases can be listed"
DISCOVERY = "discovery"
"""The kind of the phase before a distribution's first suite. It is not retried: a process that dies in it would die
again."""

STARTING = 300.0
"""Timeout in seconds of discovering plugins, setting a platform up, or listing cases."""


def find_distributions(names: Sequence[str]) -> dict[str, str]:
    """Versions of distributions, by canonical name; each is named by its own name or that of an entry point. Raises
    PluginError, which lists the installed ones, for one that is not installed or registers nothing."""
    points = [p for p in metadata.entry_points() if p.dist and re.fullmatch(r"llmk\.v\d+", p.group)]
    known: dict[str, str] = {canonicalize_name(p.dist.name): p.dist.version for p in points if p.dist}
    aliases = {canonicalize_name(p.name): canonicalize_name(p.dist.name) for p in points if p.dist}
    found: dict[str, str] = {}
    for name in map(canonicalize_name, names):
        distribution = name if name in known else aliases.get(name, "")
        if distribution:
            found[distribution] = known[distribution]
            continue
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            close = get_close_matches(name, [*known, *aliases], n=1)
            hint = f"did you mean {close[0]}?" if close else f"pip install {name}"
            raise PluginError(
                f"{name} is not installed", hint=f"{hint}; installed: {', '.join(sorted(known))}"
            ) from None
        hint = f'[project.entry-points."{ENTRY_POINT_GROUP}"] in its pyproject.toml, then install it again'
        raise PluginError(
            f"{name} {version} registers nothing: it has no entry point in {ENTRY_POINT_GROUP}", hint=hint
        )
    return found


@dataclass(slots=True)
class Check:
    """Runs a job; if its process dies, runs the remaining suites in a new one.

    ``timeout`` is in seconds, for one case; ``report`` is called with each result; ``first_failure`` stops the check at
    the first failure.
    """

    card: Card
    timeout: float = 120.0
    first_failure: bool = False
    report: Callable[[Result], None] = lambda result: None
    listed: list[str] = field(default_factory=list)
    """``spec::name`` of every case."""

    def run(self, job: Job) -> None:
        """Runs the job and adds its results to the card."""
        progress = _Progress(job)
        while not (progress.ended or self._stopped):
            progress = _Progress(job)
            process = _Process(job)
            try:
                self._follow(process, progress)
            finally:
                process.end()
            if not (progress.ended or self._stopped):
                self._record_death(process, progress)
            progress.ended |= progress.kind == DISCOVERY
            job = replace(job, done=[*job.done, *progress.done, (progress.kind, progress.spec)])

    @property
    def _stopped(self) -> bool:
        return self.first_failure and self.card.failed

    def _follow(self, process: _Process, progress: _Progress) -> None:
        """Reads events until the process ends, hangs, or has failed often enough."""
        for event in process.events():
            process.patience = self.timeout if event["event"] == "start" else max(self.timeout, STARTING)
            match event.pop("event"):
                case "suite":
                    progress.enter(**event)
                case "cases":
                    progress.left = event["names"]
                    self.listed += [f"{progress.spec}::{name}" for name in progress.left]
                case "start":
                    progress.name = event["name"]
                case "result":
                    progress.left.remove(progress.name)
                    progress.name = LISTING
                    self._add(Result(**event))
                case "end":
                    progress.ended = True
                    self.card.platform = event["platform"] or self.card.platform
                    self.card.notes += event["notes"]
            if self._stopped:
                return

    def _record_death(self, process: _Process, progress: _Progress) -> None:
        """Adds a failure for the case in which the process died, and skips for the cases that it did not reach."""
        message = process.epitaph()
        self._add(Result(progress.spec, progress.kind, progress.name, "failed", process.quiet_for, message))
        reason = f"not run, because the process {message.splitlines()[0].removeprefix('the process ')} before"
        for name in [name for name in progress.left if name != progress.name]:
            self._add(Result(progress.spec, progress.kind, name, "skipped", 0.0, reason))

    def _add(self, result: Result) -> None:
        self.card.results.append(result)
        self.report(result)


class _Progress:
    """The progress of a process: finished suites, the current suite and the current case."""

    def __init__(self, job: Job) -> None:
        self.spec, self.kind, self.name = job.distribution, DISCOVERY, "its plugins can be discovered"
        self.left: list[str] = []
        self.done: list[tuple[str, str]] = []
        self.ended = False

    def enter(self, spec: str, kind: str) -> None:
        if self.kind != "bench":  # which every process opens for itself
            self.done.append((self.kind, self.spec))
        self.spec, self.kind, self.name, self.left = spec, kind, LISTING, []


class _Process:
    """A child process and its output."""

    def __init__(self, job: Job) -> None:
        self.patience, self.quiet_for = STARTING, 0.0
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115, it is read after the process ended
        command = [*PYTHON, "-X", "faulthandler", "-m", "llmk_testing.child", job.dump()]
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": self._errors}
        self._process = subprocess.Popen(command, **streams, start_new_session=True, env=os.environ | waiting())
        self._lines: queue.Queue[bytes] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def events(self) -> Iterator[dict[str, Any]]:
        """Events, until the output ends or none arrives for ``patience`` seconds."""
        try:
            while line := self._lines.get(timeout=self.patience):
                yield json.loads(line)
        except queue.Empty:
            self.quiet_for = self.patience

    def epitaph(self) -> str:
        """How it ended, and its last output."""
        code = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").splitlines()[-20:]
        how = f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        if self.quiet_for:
            how = f"was killed after {self.quiet_for:g} seconds without output"
        return "\n".join([f"the process {how}", *said])

    def end(self) -> None:
        """Kills it and its child processes. A process that is about to exit by itself may do so, because its exit code
        gives the cause."""
        pid, deadline = self._process.pid, time.monotonic() + (0 if self.quiet_for else 15)
        while not os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) and time.monotonic() < deadline:
            time.sleep(0.01)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)  # the process has not been waited for, so its group id is still valid
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(b"")

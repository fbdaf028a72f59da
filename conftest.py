"""What all tests share: randomness of their own, and a sample of those that are slow."""

from __future__ import annotations

import os
import random
import sys
from collections import defaultdict
from operator import itemgetter

import pytest
from sample import drawn, measured, record, runs_all, seed_of

SHARE = 0.005
"""Of the cases of slow tests, so many are run unless all are asked for."""
SHARE_OF_FILES = 0.1
"""Of the files whose tests share a slow start."""
ALLOWED = 0.7
"""Seconds that each other test may take: of those that take longer, so many are drawn that they take it on average."""
LISTED = 30
"""Files that are listed with their time at the end."""
SECONDS: defaultdict[str, float] = defaultdict(float)
"""By file, what its tests took."""
CASES: dict[str, float] = {}
"""By test that no marker calls slow, how long it ran."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("slow tests")
    group.addoption("--full", action="store_true", help="run all slow tests instead of a sample of them")
    group.addoption("--sample-seed", default="", help="draw the sample by this; by default by the commit")
    group.addoption("--record-durations", action="store_true", help="keep how long tests ran, which the sample goes by")


def pytest_report_header(config: pytest.Config) -> str:
    if config.getoption("--full"):
        return "slow tests: all"
    shares = f"{SHARE:.1%}, and {SHARE_OF_FILES:.0%} of slow files"
    return f"slow tests: {shares}, drawn by --sample-seed={seed_of(config)}; --full runs all"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the slow tests that were not drawn. Tests that the command line names are always run."""
    if runs_all(config):
        return
    seed = seed_of(config)
    chosen, left_out = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        (chosen if _chosen(item, seed) else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = chosen


def _chosen(item: pytest.Item, seed: str) -> bool:
    if item.get_closest_marker("slow_file") and not drawn(item.nodeid.partition("::")[0], seed, SHARE_OF_FILES):
        return False
    if item.get_closest_marker("slow"):
        return drawn(item.nodeid, seed, SHARE)
    seconds = measured().get(item.nodeid, 0.0)
    return seconds <= ALLOWED or drawn(item.nodeid, seed, ALLOWED / seconds)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    os.environ.pop(
        "PYTHONSAFEPATH", None
    )  # llmk's command line sets it for its children; tests' scripts import siblings
    _draw_the_same_numbers()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    """Once more, as a fixture that serves several tests has drawn for the first of them only."""
    _draw_the_same_numbers()


def _draw_the_same_numbers() -> None:
    """Makes what a test draws independent of those that ran before it, in this process or another."""
    random.seed(0)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Names what failed at once, as a run that hangs or is stopped never comes to its summary."""
    SECONDS[report.nodeid.partition("::")[0]] += report.duration
    if report.when == "call" and not {"slow", "slow_file"} & report.keywords.keys():
        CASES[report.nodeid] = report.duration
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        sys.stderr.write(f"\n{report.nodeid}: {report.when} failed\n")
        if report.longrepr is not None:
            sys.stderr.write(str(report.longrepr)[-2000:] + "\n")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Lists the files that took the most time, for whoever keeps the run short."""
    if terminalreporter.config.getoption("--record-durations"):
        record(CASES)
    total = sum(SECONDS.values())
    if total > 60:
        terminalreporter.section(f"{total:.0f} s of tests, most of them in")
        for file, seconds in sorted(SECONDS.items(), key=itemgetter(1), reverse=True)[:LISTED]:
            terminalreporter.line(f"{seconds:6.0f} s  {file}")

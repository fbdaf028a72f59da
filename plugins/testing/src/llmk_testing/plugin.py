"""The pytest plugin: a distribution's conformance cases as tests, for ``pytest --llmk-check DIST`` and for test files.

It adds options. Without them it costs nothing: no module of llmk is imported before cases are collected.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from llmk.kernel.registry import Registry
    from llmk_testing.bench import Bench
    from llmk_testing.card import Card
    from llmk_testing.case import Case
    from llmk_testing.collect import Options

_REGISTRY: pytest.StashKey[Registry] = pytest.StashKey()
_OPENED: pytest.StashKey[Bench] = pytest.StashKey()
_CARD: pytest.StashKey[Card] = pytest.StashKey()


def conformance(distribution: str) -> Callable[..., None]:
    """A test of every case of a distribution::

    test_conformance = conformance("llmk-acme")
    """

    def test(llmk_case: Case, request: pytest.FixtureRequest) -> None:
        _run(llmk_case, request.config)

    test.llmk_distribution = distribution  # type: ignore[attr-defined]
    return test


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options."""
    group = parser.getgroup("llmk", "llmk: conformance of plugins")
    group.addoption("--llmk-check", action="append", default=[], metavar="DIST", help="test a distribution's plugins")
    group.addoption("--llmk-platform", default="", metavar="NAME", help="the platform to run kernels on")
    group.addoption("--llmk-thorough", action="store_true", help="more shapes, more rounds")
    group.addoption("--llmk-seed", type=int, default=0, help="seed of random inputs")
    group.addoption("--llmk-card", metavar="FILE", help="write the report card, as JSON or as Markdown (*.md)")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrizes the tests of :func:`conformance`."""
    distribution = getattr(metafunc.function, "llmk_distribution", "")
    if distribution:
        cases = [pytest.param(case, id=f"{case.spec}::{case.name}") for case in _collect(metafunc.config, distribution)]
        metafunc.parametrize("llmk_case", cases)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Adds the cases of ``--llmk-check`` to the collected tests."""
    for distribution in config.getoption("llmk_check"):
        items += [CaseItem.from_parent(session, case=case) for case in _collect(config, distribution)]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Writes the card of the cases that ran."""
    path, card = session.config.getoption("llmk_card"), session.config.stash.get(_CARD, None)
    if path and card:
        text = card.markdown() if path.endswith(".md") else json.dumps(card.as_dict(), indent=1) + "\n"
        Path(path).write_text(text)


class CaseItem(pytest.Item):
    """One case, under the id ``spec::name``."""

    def __init__(self, *, parent: pytest.Session, case: Case) -> None:
        name = f"{case.spec}::{case.name}"
        super().__init__(name, parent, nodeid=name)
        self._case = case

    def runtest(self) -> None:
        """Runs it in this process, so that a debugger sees it."""
        _run(self._case, self.config)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """For a failed check, only its message; for any other exception, the traceback."""
        return str(excinfo.value) if isinstance(excinfo.value, AssertionError) else super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        """The case's name, in place of a file and line."""
        return self.path, None, self.nodeid


def _run(case: Case, config: pytest.Config) -> None:
    from llmk_testing.case import Result, Skip

    raised: list[BaseException] = []

    def kept() -> str | None:
        try:
            return case.run()
        except BaseException as error:
            raised.append(error)
            raise

    result = Result.of(type(case)(case.spec, case.kind, case.name, kept))
    config.stash[_CARD].results.append(result)
    if raised and isinstance(raised[0], Skip):
        pytest.skip(result.message)
    if raised:
        raise raised[0]


def _collect(config: pytest.Config, name: str) -> Iterator[Case]:
    """The cases of a distribution, on a bench that all cases of this run share. Raises ``pytest.UsageError`` if the
    distribution does not exist."""
    from llmk.api import LlmkError
    from llmk.config import load
    from llmk.kernel.registry import Registry
    from llmk_testing.card import Card
    from llmk_testing.check import find_distributions
    from llmk_testing.collect import Collected, Options, open_bench

    def opened(options: Options) -> Bench:
        if _OPENED not in config.stash:
            config.stash[_OPENED] = open_bench(options)
        return config.stash[_OPENED]

    try:
        found = find_distributions([name])
    except LlmkError as error:
        raise pytest.UsageError(str(error)) from error
    if _REGISTRY not in config.stash:
        config.stash[_REGISTRY] = Registry.discover(load().config.plugins)
    platform, thorough, seed = (config.getoption(f"llmk_{option}") for option in ("platform", "thorough", "seed"))
    card = config.stash.setdefault(_CARD, Card({}, thorough, seed))
    for distribution, version in found.items():
        card.distributions[distribution] = version
        collected = Collected(distribution, Options((), platform, thorough, seed), opened, config.stash[_REGISTRY])
        for suite in collected.suites():
            yield from suite.cases()
        card.platform = collected.platform or card.platform
        card.notes += collected.notes

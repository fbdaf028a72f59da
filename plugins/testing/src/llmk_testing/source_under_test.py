"""A source of models under test: what is got of it, in an empty cache, also by an interrupted fetch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from llmk.api import (
    FetchedModel,
    FetchProgress,
    ModelSourceContext,
    ModelSourceSpec,
)
from llmk.kernel.loader import load_object
from llmk_testing.bench import Bench
from llmk_testing.model_sources import OpenExample, SourceExample
from llmk_testing.sections import options_of


@dataclass(frozen=True, slots=True)
class Tried:
    """A source, what it is tried on, and a cache that starts empty. ``reopened`` opens all of it once more: a source
    may have its cache where its options say."""

    spec: ModelSourceSpec
    example: SourceExample
    options: Mapping[str, Any]
    cache: Path
    reopened: Callable[[], AbstractContextManager[Tried]]

    def source(self) -> Any:
        """Another instance, as another process of llmk would make it."""
        make = load_object(self.spec.implementation, plugin=self.spec.id, kind="model_source", id=self.spec.id)
        return make(ModelSourceContext(self.cache, self.options))

    def fetch(
        self, name: str = "", progress: FetchProgress = lambda done, total: None, *, outline: bool = False
    ) -> FetchedModel:
        """What a new instance gets; by default, the example."""
        found = self.source().fetch(name or self.example.name, progress, outline=outline)
        assert isinstance(found, FetchedModel), f"fetch returned {type(found).__name__}"
        return found


@contextmanager
def opened(spec: ModelSourceSpec, bench: Bench) -> Iterator[Tried]:
    open_example: OpenExample = load_object(spec.examples)
    with TemporaryDirectory(prefix="llmk-") as named:
        folder = Path(named).resolve()
        served = folder / "example"
        served.mkdir()
        with open_example(served) as example:
            good = isinstance(example, SourceExample)
            assert good, f"{spec.examples} opened {type(example).__name__}, expected a SourceExample"
            options, reopened = options_of(spec.id, bench, example.options), partial(opened, spec, bench)
            yield Tried(spec, example, options, folder / "cache", reopened)


def observed(tried: Tried, name: str = "") -> tuple[dict[str, bytes], int]:
    """A model's files in a new cache, and how often progress is called."""
    calls: list[int] = []
    with tried.reopened() as fresh:
        found = fresh.fetch(name, lambda done, total: calls.append(done))
        return contents(found.path), len(calls)


def interrupt_at(tried: Tried, number: int, name: str = "", *, outline: bool = False) -> None:
    """Interrupts a fetch once, in this call of ``progress``; one that has fewer calls is whole then."""
    calls = 0

    def interrupt(done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        if calls == number:
            raise KeyboardInterrupt

    def fetch() -> FetchedModel:
        found = tried.fetch(name, interrupt, outline=outline)
        if calls < number:
            raise KeyboardInterrupt
        return found

    interrupted(fetch)


def interrupted(fetch: Callable[[], FetchedModel]) -> None:
    try:
        found = fetch()
    except KeyboardInterrupt:
        return
    except Exception as error:
        raise AssertionError(f"an interrupt came out as {type(error).__name__}: {error}") from error
    raise AssertionError(f"an interrupt was ignored: {found.path} was returned")


def files_of(path: Path) -> list[Path]:
    return sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]


def contents(path: Path) -> dict[str, bytes]:
    return {each.relative_to(path).as_posix(): each.read_bytes() for each in files_of(path)}


def differing(found: Mapping[str, bytes], right: Mapping[str, bytes]) -> list[str]:
    """Names of files whose bytes are not these."""
    return sorted(name for name in right if found.get(name) != right[name])

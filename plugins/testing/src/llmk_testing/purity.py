"""What every function that answers with a verdict must be: pure, total, torch-free, and clear in what it refuses."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

from llmk.api import Verdict
from llmk.api.errors import describe
from llmk_testing.wheel import HEAVY


def check_pure(question: Callable[[Any], Any], about: Iterable[Any]) -> None:
    """``question`` answers each of ``about`` with a verdict, twice the same, and changes nothing of it."""
    for one in about:
        before = deepcopy(one)
        try:
            with refusing_imports():
                first, second = question(one), question(one)
        except Exception as error:
            raise AssertionError(f"raised {describe(error)}, asked about {one}") from error
        assert isinstance(first, Verdict), f"answered {first!r}, which is no Verdict, asked about {one}"
        assert first == second, f"answered {first}, then {second}, asked twice about {one}"
        assert first or first.reasons, f"refused without a reason, asked about {one}"
        assert one == before, f"changed what it was asked about: {before} became {one}"


@contextmanager
def refusing_imports(packages: tuple[str, ...] = HEAVY) -> Iterator[None]:
    """While entered, an ``import`` of one of the packages fails, though it may have been imported before."""
    original = builtins.__import__

    def guarded(name: str, *rest: Any, **more: Any) -> Any:
        if name.partition(".")[0] in packages:
            raise ImportError(f"it imports {name}, but runs where llmk only plans")
        return original(name, *rest, **more)

    builtins.__import__ = guarded
    try:
        yield
    finally:
        builtins.__import__ = original

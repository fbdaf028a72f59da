"""Checks of functions that return a verdict: they must be pure and total, import no torch, and give reasons for a
refusal."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

from llmk.api import Verdict
from llmk.api.errors import describe
from llmk_testing.wheel import HEAVY


def check_pure(function: Callable[[Any], Any], arguments: Iterable[Any]) -> None:
    """``function`` must return a verdict for each of ``arguments``, the same one twice, and must not change its
    argument."""
    for one in arguments:
        before = deepcopy(one)
        try:
            with refusing_imports():
                first, second = function(one), function(one)
        except Exception as error:
            raise AssertionError(f"raised {describe(error)} for {one}") from error
        assert isinstance(first, Verdict), f"returned {first!r}, which is not a Verdict, for {one}"
        assert first == second, f"returned {first}, then {second}, for {one}"
        assert first or first.reasons, f"refused without a reason: {one}"
        assert one == before, f"changed its argument: {before} became {one}"


@contextmanager
def refusing_imports(packages: tuple[str, ...] = HEAVY) -> Iterator[None]:
    """Within, an ``import`` of one of the packages fails, even if it was imported before."""
    original = builtins.__import__

    def guarded(name: str, *rest: Any, **more: Any) -> Any:
        if name.partition(".")[0] in packages:
            raise ImportError(f"it imports {name}, but planning must not import it")
        return original(name, *rest, **more)

    builtins.__import__ = guarded
    try:
        yield
    finally:
        builtins.__import__ = original

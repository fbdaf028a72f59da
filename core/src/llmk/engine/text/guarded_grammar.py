"""A grammar as the engine calls it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from llmk.api import Grammar, LlmkError, PluginError, RequestError
from llmk.engine.wire.grammar_params import PARAM
from llmk.engine.wire.plugin_calls import GRAMMAR, Call, is_interrupt


class GuardedGrammar:
    """A grammar as the engine calls it: its calls are marked for the process's watcher
    (:mod:`llmk.engine.wire.plugin_calls`), and what it raises is the error of its request.

    Each method may raise :class:`~llmk.api.LlmkError`, after which the request must fail with it and the grammar must
    not be called again.
    """

    __slots__ = ("_call", "_call_of_all", "_called", "_forced", "_grammar")

    def __init__(self, grammar: Grammar, id: str, wheel: str = "", request_id: str = "") -> None:
        self._grammar = grammar
        self._called = f"the {GRAMMAR} {id}" + (f" of {wheel}" if wheel else "")
        self._call = Call(GRAMMAR, id, wheel, request_id)
        self._call_of_all = Call(GRAMMAR, id, wheel)
        self._forced: Callable[[], Sequence[int]] = getattr(grammar, "forced", tuple)

    def fill(self, bits: memoryview) -> None:
        """:meth:`llmk.api.Grammar.fill`. Raises where the row allows no token."""
        with self._call, guard(self._called):
            self._grammar.fill(bits)
        if bits.tobytes() == bytes(bits.nbytes):
            raise _nothing_allowed()

    def accept(self, tokens: Sequence[int]) -> None:
        """:meth:`llmk.api.Grammar.accept`."""
        with self._call, guard(self._called):
            self._grammar.accept(tokens)

    def rollback(self, num_tokens: int) -> None:
        """:meth:`llmk.api.Grammar.rollback`."""
        with self._call, guard(self._called):
            self._grammar.rollback(num_tokens)

    def forced(self) -> Sequence[int]:
        """:meth:`llmk.api.Grammar.forced`."""
        with self._call, guard(self._called):
            return self._forced()

    @staticmethod
    def fill_all(grammars: Sequence[GuardedGrammar], rows: Sequence[memoryview]) -> dict[int, LlmkError]:
        """Fills the masks of several; returns the errors of those that failed, by their numbers."""
        errors: dict[int, LlmkError] = {}
        kinds: dict[type[Grammar], list[int]] = {}
        for number, guarded in enumerate(grammars):
            kinds.setdefault(type(guarded._grammar), []).append(number)
        for numbers in kinds.values():
            if GuardedGrammar._fill_together([grammars[i] for i in numbers], [rows[i] for i in numbers]):
                continue
            for number in numbers:
                rows[number].cast("B")[:] = bytes(rows[number].nbytes)
                try:
                    grammars[number].fill(rows[number])
                except LlmkError as error:
                    errors[number] = error
        return errors

    @staticmethod
    def _fill_together(grammars: Sequence[GuardedGrammar], rows: Sequence[memoryview]) -> bool:
        """Fills the masks of grammars of one class at once, where it can and none fails."""
        first = grammars[0]
        fill_all = getattr(type(first._grammar), "fill_all", None)
        if len(grammars) == 1 or fill_all is None:
            return False
        try:
            with first._call_of_all, guard(first._called):
                fill_all([(guarded._grammar, row) for guarded, row in zip(grammars, rows, strict=True)])
        except LlmkError:
            return False
        nothing = bytes(rows[0].nbytes)
        return not any(row.tobytes() == nothing for row in rows)


def _nothing_allowed() -> RequestError:
    what = "the grammar allows no token: nothing in the model's vocabulary continues the output"
    return RequestError(what, param=PARAM)


@contextmanager
def guard(called: str) -> Iterator[None]:
    """Makes what the plugin raises the request's error, with the plugin's name."""
    try:
        yield
    except (RequestError, PluginError):
        raise
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise PluginError(f"{called} failed: {type(error).__name__}: {error}") from error

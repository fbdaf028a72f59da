"""Grammars of requests: checked where requests are prepared, and compiled and started for the engine, off its loop."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmk.api import (
    CompiledGrammar,
    GrammarCompiler,
    GrammarContext,
    GrammarLimits,
    GrammarSpec,
    LlmkError,
    PluginError,
    RequestError,
)
from llmk.engine.text.guarded_grammar import GuardedGrammar, guard
from llmk.engine.wire.grammar_params import PARAM, GrammarParams
from llmk.engine.wire.plugin_calls import GRAMMAR, Call, is_distrusted, mark_of
from llmk.kernel.contracts import check_made
from llmk.kernel.loader import load_object
from llmk.planning.choices.grammars import choose_grammar

if TYPE_CHECKING:
    from llmk.config import Config
    from llmk.engine.text.tokenizer import Tokenizer
    from llmk.engine.wire.plugin_mark import PluginMark
    from llmk.engine.wire.request import EngineRequest
    from llmk.kernel.registry import Registered
    from llmk.planning.boot import Boot

logger = logging.getLogger(__name__)

KEPT = 64
"""Compiled grammars that are kept for requests with the same text."""
_BYTES = 256


def kinds_of(boot: Boot) -> tuple[str, ...]:
    """The kinds of grammars that requests may have."""
    found, _ = choose_grammar(boot.registry, boot.settings.config)
    return found.spec.kinds if found else ()


class GrammarChecker:
    """Checks the grammars of requests by compiling them for a vocabulary of bytes, so that no process which prepares
    requests must build the model's own."""

    def __init__(self, found: Registered[GrammarSpec] | None, config: Config) -> None:
        self._found = found
        self._config = config
        self._compiler: GrammarCompiler | None = None

    @classmethod
    def choose(cls, boot: Boot) -> GrammarChecker:
        """The checker for the compiler that the engine uses."""
        config = boot.settings.config
        return cls(choose_grammar(boot.registry, config)[0], config)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of grammars that requests may have."""
        return self._found.spec.kinds if self._found else ()

    def check(self, grammar: GrammarParams) -> None:
        """Raises :class:`~llmk.api.RequestError` where the engine would refuse the grammar, and
        :class:`~llmk.api.PluginError` where its compiler fails."""
        if self._found is None:
            return  # the input processor refuses it, with what to install
        size, most = len(grammar.text.encode(errors="replace")), self._config.limits.grammar_bytes
        if size > most:
            what = f"{PARAM} has {size} bytes; the limit is {most} (limits.grammar_bytes)"
            raise RequestError(what, param=PARAM)
        with guard(_called(self._found)):
            if self._compiler is None:
                context = _context(self._config, self._found, [bytes([byte]) for byte in range(_BYTES)])
                self._compiler = _make(self._found, context)
            _compile(self._compiler, grammar)


@dataclass(frozen=True, slots=True)
class Started:
    """A sequence whose grammar can be used from now on, or else the ``error`` that it must fail with."""

    request: EngineRequest
    grammar: GuardedGrammar | None
    error: LlmkError | None = None


class GrammarStarter:
    """Compiles and starts the grammars of an engine's sequences in a thread, so that no other sequence waits for one.

    The vocabulary is loaded in that thread when the first sequence with a grammar comes. What was compiled is kept for
    sequences with the same grammar.
    """

    def __init__(self, boot: Boot) -> None:
        self._boot = boot
        self._found, self._why = choose_grammar(boot.registry, boot.settings.config)
        self._thread: ThreadPoolExecutor | None = None
        self._mark: PluginMark | None = None
        """The thread's own: the loop marks its calls at the same time."""
        self._compiler: GrammarCompiler | None = None
        self._kept: OrderedDict[GrammarParams, CompiledGrammar] = OrderedDict()
        self._starting: dict[str, tuple[EngineRequest, float, Future[GuardedGrammar]]] = {}

    @property
    def num_starting(self) -> int:
        """Sequences that wait for their grammars."""
        return len(self._starting)

    def add(self, request: EngineRequest) -> None:
        """Starts the grammar of a sequence that has one. :meth:`take` returns it when it is done."""
        if self._thread is None:
            self._thread, self._mark = ThreadPoolExecutor(1, thread_name_prefix="llmk-grammars"), mark_of("grammars")
        self._starting[request.id] = request, time.monotonic(), self._thread.submit(self._start, request)

    def abort(self, ids: Iterable[str]) -> None:
        """Forgets sequences that have not been taken yet."""
        for id in ids:
            if id in self._starting:
                self._starting.pop(id)[2].cancel()

    def take(self, seconds: float = 0.0) -> list[Started]:
        """The sequences that are done, in the order in which they came; waits for up to ``seconds`` for one to be."""
        if seconds and self._starting:
            next_one = next(iter(self._starting.values()))[2]  # one thread: they are done in order
            wait([next_one], timeout=seconds)
        done = [id for id, (_, _, future) in self._starting.items() if future.done()]
        return [self._started(*self._starting.pop(id)) for id in done]

    def ages(self) -> Iterator[tuple[EngineRequest, float]]:
        """The sequences that wait, and for how many seconds, those with engines before this one included."""
        now = time.monotonic()
        for request, since, _ in self._starting.values():
            yield request, request.age + now - since

    def close(self) -> None:
        """Ends the thread. Idempotent."""
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)
        self._thread = None

    def _started(self, request: EngineRequest, since: float, future: Future[GuardedGrammar]) -> Started:
        request.age += time.monotonic() - since
        error = future.exception()
        if error is None:
            return Started(request, future.result())
        if isinstance(error, LlmkError):
            return Started(request, None, error)
        logger.error("a grammar could not be started", exc_info=error, extra={"request_id": request.context.log_id})
        return Started(request, None, PluginError(f"a grammar could not be started: {type(error).__name__}: {error}"))

    def _start(self, request: EngineRequest) -> GuardedGrammar:
        """Runs in the thread. A sequence that goes on from an engine before this one has output already."""
        params = request.params.structured_outputs
        if self._found is None or params is None:
            raise RequestError(f"{PARAM} can't be enforced: {self._why}", param=PARAM)
        found, called = self._found, _called(self._found)
        if is_distrusted(found.spec.id):
            hint = "fix its wheel, and restart the server"
            raise PluginError(f"{found.spec.id} ended the engine too often, and is not called again", hint=hint)
        context = self._model_context(found) if self._compiler is None else None
        with guard(called), Call(GRAMMAR, found.spec.id, found.plugin.wheel, request.id, mark=self._mark):
            if self._compiler is None and context is not None:
                self._compiler = _make(found, context)
            assert self._compiler is not None
            compiled = self._kept.pop(params, None) or _compile(self._compiler, params)
            self._kept[params] = compiled
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            vocab = self._boot.facts.vocab_size
            ends = {token for token in (*request.eos_token_ids, *request.params.stop_token_ids) if token < vocab}
            grammar = compiled.start(frozenset(ends))
            check_made(grammar, "started_grammar")
            if request.generated_token_ids:
                grammar.accept(request.generated_token_ids)
        return GuardedGrammar(grammar, found.spec.id, found.plugin.wheel, request.id)

    def _model_context(self, found: Registered[GrammarSpec]) -> GrammarContext:
        boot, vocab = self._boot, self._boot.facts.vocab_size
        from llmk.engine.text.tokenizer import Tokenizer, tokenizer_options  # an engine starts without it

        tokenizer = Tokenizer.load(boot.checkpoint, **tokenizer_options(boot.settings.config.model))
        return _context(boot.settings.config, found, token_table(tokenizer, vocab), tokenizer)


def token_table(tokenizer: Tokenizer, vocab_size: int) -> list[bytes]:
    """The bytes of each of the model's ``vocab_size`` tokens; none for ids that the tokenizer lacks."""
    known = min(tokenizer.vocab_size, vocab_size)
    return [tokenizer.token_bytes(token) for token in range(known)] + [b""] * (vocab_size - known)


def _context(
    config: Config, found: Registered[GrammarSpec], tokens: Sequence[bytes], tokenizer: Tokenizer | None = None
) -> GrammarContext:
    limits, options = config.limits, config.plugin.get(found.plugin.name, {})
    special = tokenizer.special_token_ids if tokenizer else frozenset[int]()

    def encode(text: str) -> list[int]:
        return list(text.encode()) if tokenizer is None else tokenizer.encode(text, add_special_tokens=False)

    own = frozenset(token for token in special if token < len(tokens))
    return GrammarContext(tokens, own, encode, GrammarLimits(limits.grammar_symbols, limits.grammar_states), options)


def _make(found: Registered[GrammarSpec], context: GrammarContext) -> GrammarCompiler:
    spec = found.spec
    kind: type[GrammarCompiler] = load_object(spec.implementation, plugin=found.plugin, kind="grammar", id=spec.id)
    return kind(context)


def _compile(compiler: GrammarCompiler, grammar: GrammarParams) -> CompiledGrammar:
    try:
        compiled = compiler.compile(grammar.kind, grammar.text)
    except RequestError as error:
        message = f"{PARAM}: the {grammar.kind} can't be used: {error.message}"
        raise RequestError(message, param=PARAM, hint=error.hint) from error
    check_made(compiled, "compiled_grammar")
    return compiled


def _called(found: Registered[GrammarSpec]) -> str:
    return f"the {GRAMMAR} {found.spec.id} of {found.plugin.wheel}"

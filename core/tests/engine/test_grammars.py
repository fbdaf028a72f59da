"""Grammars of requests: checked, compiled in a thread, started once per sequence, and kept from harming others."""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from paged_device import make_core

from llmk.api import GrammarContext, GrammarSpec, LlmkError, PluginError, RequestError
from llmk.config.schema import Config
from llmk.engine.core import EngineCore
from llmk.engine.text import grammars as module
from llmk.engine.text import tokenizer
from llmk.engine.text.grammars import GrammarChecker, GrammarStarter, Started, kinds_of, token_table
from llmk.engine.text.guarded_grammar import GuardedGrammar
from llmk.engine.text.input_processor import InputProcessor
from llmk.engine.wire import plugin_calls
from llmk.engine.wire.engine_info import EngineInfo
from llmk.engine.wire.grammar_params import GrammarParams
from llmk.engine.wire.plugin_calls import Call, Culprit, Marks
from llmk.engine.wire.plugin_mark import PluginMark
from llmk.engine.wire.request import EngineRequest
from llmk.engine.wire.sampling_params import SamplingParams
from llmk.kernel.discovery import Plugin
from llmk.kernel.registry import Registered

VOCAB = 70


class Letters:
    """Takes texts of lower-case letters; each token of one letter is allowed in turn."""

    made: ClassVar[list[GrammarContext]] = []
    compiled: ClassVar[list[tuple[str, str, str]]] = []
    gate = threading.Event()

    def __init__(self, context: GrammarContext) -> None:
        self.context = context
        self.made.append(context)

    def compile(self, kind: str, text: str) -> Any:
        self.compiled.append((kind, text, threading.current_thread().name))
        if text == "slow":
            assert self.gate.wait(20)
        if text == "quits":
            raise SystemExit(3)
        if text == "formless":
            return object()
        if not text.islower():
            raise RequestError("it has other characters", hint="write it in lower case")
        return Word([self.context.encode(letter)[0] for letter in text])


class Word:
    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = ids

    def start(self, end_token_ids: frozenset[int]) -> Any:
        return Spelling(self.ids, end_token_ids)


class Spelling:
    """Without ``forced``, which is optional."""

    def __init__(self, ids: Sequence[int], ends: frozenset[int]) -> None:
        self.ids, self.ends, self.at = ids, ends, 0

    def fill(self, bits: memoryview) -> None:
        for token in [self.ids[self.at]] if self.at < len(self.ids) else self.ends:
            bits[token // 32] |= 1 << token % 32

    def accept(self, tokens: Sequence[int]) -> None:
        self.at += len(tokens)

    def rollback(self, num_tokens: int) -> None:
        self.at -= num_tokens


class Alphabet:
    """Token ``t`` is the letter ``chr(t + 60)``."""

    vocab_size, special_token_ids = 63, frozenset({1, 62})
    loads: ClassVar[list[str]] = []

    @classmethod
    def load(cls, checkpoint: Any, **options: Any) -> Alphabet:
        cls.loads.append(threading.current_thread().name)
        return cls()

    def token_bytes(self, token: int) -> bytes:
        return chr(token + 60).encode()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [ord(letter) - 60 for letter in text]


def spec(name: str = "Letters", **fields: Any) -> Registered[GrammarSpec]:
    fields = {"kinds": ("regex",), "implementation": f"{__name__}:{name}"} | fields
    return Registered(GrammarSpec(id="test.letters", name="letters", **fields), Plugin("test", "test-wheel", "1.0"))


def boot_with(*found: Registered[GrammarSpec]) -> Any:
    return SimpleNamespace(
        registry=SimpleNamespace(of=lambda kind: list(found)),
        settings=SimpleNamespace(config=Config()),
        facts=SimpleNamespace(vocab_size=VOCAB),
        checkpoint=None,
    )


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    for kept in (Letters.made, Letters.compiled, Alphabet.loads):
        kept.clear()
    Letters.gate.clear()
    monkeypatch.setattr(tokenizer, "Tokenizer", Alphabet)
    monkeypatch.setattr(module, "load_object", lambda location, **_: globals()[location.partition(":")[2]])


@pytest.fixture
def starter() -> Iterator[GrammarStarter]:
    made = GrammarStarter(boot_with(spec()))
    yield made
    Letters.gate.set()
    made.close()


def request(id: str, text: str, **fields: Any) -> EngineRequest:
    params = SamplingParams(structured_outputs=GrammarParams(regex=text), stop_token_ids=(5, 400))
    return EngineRequest(id=id, prompt_token_ids=[7], params=params, eos_token_ids=(2,), **fields)


def taken(starter: GrammarStarter, count: int = 1) -> list[Started]:
    found: list[Started] = []
    while len(found) < count:
        more = starter.take(seconds=20.0)
        assert more
        found += more
    return found


def mask(grammar: GuardedGrammar) -> list[int]:
    bits = array("i", [0] * 3)
    grammar.fill(memoryview(bits))
    return [token for token in range(96) if bits[token // 32] >> token % 32 & 1]


def test_nothing_is_made_before_a_grammar_comes(starter: GrammarStarter) -> None:
    assert starter.num_starting == 0
    assert starter.take() == []
    starter.close()
    assert (Letters.made, Alphabet.loads) == ([], [])


def test_a_grammar_is_compiled_in_a_thread_and_matched_by_the_output(starter: GrammarStarter) -> None:
    starter.add(request("a/0", "ab"))
    assert starter.num_starting == 1
    (started,) = taken(starter)
    assert (started.request.id, started.error, starter.num_starting) == ("a/0", None, 0)
    grammar = started.grammar
    assert grammar is not None
    assert mask(grammar) == [37]
    grammar.accept([37, 38])
    assert mask(grammar) == [2, 5]
    assert grammar.forced() == ()
    grammar.rollback(1)
    assert mask(grammar) == [38]
    (context,) = Letters.made
    assert len(context.tokens) == VOCAB
    assert (context.tokens[37], context.tokens[63:]) == (b"a", [b""] * 7)
    assert context.special_token_ids == {1, 62}
    assert {name.partition("_")[0] for name in (*Alphabet.loads, Letters.compiled[0][2])} == {"llmk-grammars"}


def test_equal_grammars_are_compiled_once_and_outputs_are_apart(starter: GrammarStarter) -> None:
    for number in range(3):
        starter.add(request(f"{number}/0", "abc"))
    first, second, third = (started.grammar for started in taken(starter, 3))
    assert first
    assert second
    assert third
    first.accept([37])
    assert (mask(first), mask(second), mask(third)) == ([38], [37], [37])
    assert len(Letters.compiled) == len(Letters.made) == len(Alphabet.loads) == 1


def test_few_compiled_grammars_are_kept(starter: GrammarStarter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT", 2)
    for text in ("a", "b", "a", "c", "a", "b"):
        starter.add(request(text, text))
        taken(starter)
    assert [text for _, text, _ in Letters.compiled] == ["a", "b", "c", "b"]


def test_a_sequence_that_goes_on_has_its_output_accepted(starter: GrammarStarter) -> None:
    starter.add(request("a/0", "abc", generated_token_ids=[37, 38], age=3.0))
    (started,) = taken(starter)
    assert started.grammar
    assert mask(started.grammar) == [39]
    assert started.request.age >= 3.0


def test_a_slow_grammar_holds_up_no_caller(starter: GrammarStarter) -> None:
    starter.add(request("slow", "slow"))
    starter.add(request("next", "a"))
    assert starter.take(seconds=0.01) == []
    assert starter.num_starting == 2
    Letters.gate.set()
    assert [started.request.id for started in taken(starter, 2)] == ["slow", "next"]


def test_an_aborted_sequence_is_not_returned(starter: GrammarStarter) -> None:
    for id in ("slow", "gone", "next"):
        starter.add(request(id, "slow" if id == "slow" else "a"))
    starter.abort(["gone", "unheard"])
    Letters.gate.set()
    assert [started.request.id for started in taken(starter, 2)] == ["slow", "next"]
    assert starter.num_starting == 0


def engine(starter: GrammarStarter, **options: Any) -> EngineCore:
    """An engine on a real clock, which starts grammars."""
    core = make_core(**options)
    core.scheduler.live.clock = time.monotonic
    return EngineCore(core.scheduler, core.runner, depth=core.depth, grammars=starter)


def plain(id: str) -> EngineRequest:
    return EngineRequest(id=id, prompt_token_ids=[7], params=SamplingParams(max_tokens=3))


def ends(core: EngineCore) -> dict[str, tuple[str, str]]:
    """Runs until nothing is left; returns what ended each sequence, and the error's code."""
    found: dict[str, tuple[str, str]] = {}
    while core.has_work:
        for output in core.step().outputs:
            if output.finish_reason is not None:
                found[output.id] = output.error or output.finish_reason, output.error_code
    return found


@pytest.mark.parametrize(
    ("limit", "message", "code"),
    [
        ("request_timeout", "the request was not done in time: after 9.", "request_timeout"),
        ("queue_timeout", "the request was not started in time: it waited for 9.", "queue_timeout"),
    ],
)
def test_a_deadline_holds_while_a_grammar_is_started(
    starter: GrammarStarter, limit: str, message: str, code: str
) -> None:
    """Others go on, and what is started too late is not queued."""
    core = engine(starter, **{limit: 9.5})
    core.add(request("slow", "slow", age=9.4))
    core.add(plain("free"))
    assert core.stats.waiting == 2
    found = ends(core)
    assert found.pop("free") == ("length", "")
    (error, found_code) = found.pop("slow")
    assert error.startswith(message)
    assert (found, found_code, core.stats.timeouts, starter.num_starting) == ({}, code, 1, 0)
    Letters.gate.set()
    assert not ends(core)


def test_an_abort_while_a_grammar_is_started_leaves_nothing(starter: GrammarStarter) -> None:
    core = engine(starter)
    for id, text in (("slow", "slow"), ("next", "a"), ("gone", "A")):
        core.add(request(id, text))
    core.step()
    core.abort(["slow", "gone", "unheard"])
    Letters.gate.set()
    core.add(plain("free"))
    core.abort(["next"])
    assert ends(core) == {"free": ("length", "")}
    assert core.stats.waiting == 0


def test_a_grammar_that_can_not_be_started_fails_its_sequence_alone(starter: GrammarStarter) -> None:
    core = engine(starter)
    core.add(request("bad", "A"))
    core.add(plain("free"))
    found = ends(core)
    assert found.pop("free") == ("length", "")
    assert found["bad"][1] == RequestError.code
    assert "it has other characters" in found["bad"][0]


def test_calls_in_the_thread_have_a_mark_of_their_own(
    starter: GrammarStarter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What marks the loop's calls meanwhile doesn't hide it."""
    monkeypatch.setattr(plugin_calls, "_mark", PluginMark(tmp_path / "mark"))
    marks = Marks(tmp_path)
    starter.add(request("a/0", "slow"))
    until = time.monotonic() + 20
    while not (found := marks.read()):
        assert time.monotonic() < until
    assert Culprit.of(found[0]) == Culprit("grammar compiler", "test.letters", "test-wheel 1.0", "a/0")
    with Call("scheduling policy", "p", "w"):
        assert len(marks.read()) == 2
    assert len(marks.read()) == 1
    Letters.gate.set()
    taken(starter)
    assert not marks.read()
    marks.close()


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("A", RequestError, "structured_outputs: the regex can't be used: it has other characters"),
        ("quits", PluginError, "the grammar compiler test.letters of test-wheel 1.0 failed: SystemExit: 3"),
        ("formless", PluginError, "failed: NotFollowed"),
    ],
)
def test_what_goes_wrong_is_the_sequences_own(
    starter: GrammarStarter, text: str, kind: type[LlmkError], message: str
) -> None:
    starter.add(request("bad", text))
    starter.add(request("good", "a"))
    bad, good = taken(starter, 2)
    assert type(bad.error) is kind
    assert message in str(bad.error)
    assert bad.grammar is None
    assert good.error is None


def test_without_a_compiler_a_sequence_fails() -> None:
    starter = GrammarStarter(boot_with())
    starter.add(request("a/0", "a"))
    (started,) = taken(starter)
    assert "can't be enforced: no installed wheel compiles grammars" in str(started.error)
    starter.close()


def test_a_compiler_that_ended_engines_is_not_called(starter: GrammarStarter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "is_distrusted", lambda id: id == "test.letters")
    starter.add(request("a/0", "a"))
    (started,) = taken(starter)
    assert "test.letters ended the engine too often" in str(started.error)
    assert not Letters.made


class Broken:
    """Each method raises what it is made with."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def fill(self, bits: memoryview) -> None:
        raise self.error

    accept = rollback = fill

    def forced(self) -> Sequence[int]:
        raise self.error


CALLS: dict[str, Callable[[GuardedGrammar], object]] = {
    "fill": mask,
    "accept": lambda grammar: grammar.accept([1]),
    "rollback": lambda grammar: grammar.rollback(1),
    "forced": lambda grammar: grammar.forced(),
}


@pytest.mark.parametrize("method", CALLS)
def test_what_a_grammar_raises_names_its_wheel(method: str) -> None:
    for error in (ValueError("rung broken"), SystemExit(4)):
        grammar: Any = Broken(error)
        with pytest.raises(PluginError, match=r"the grammar compiler x\.y of w 1\.0 failed: \w+: "):
            CALLS[method](GuardedGrammar(grammar, "x.y", "w 1.0", "a/0"))
    grammar = Broken(RequestError("can't be matched further"))
    with pytest.raises(RequestError, match="can't be matched further"):
        CALLS[method](GuardedGrammar(grammar, "x.y"))


def test_a_mask_that_allows_nothing_is_an_error() -> None:
    grammar = GuardedGrammar(Spelling([], frozenset()), "x.y")
    with pytest.raises(RequestError, match="the grammar allows no token") as caught:
        mask(grammar)
    assert caught.value.param == "structured_outputs"


def test_grammars_are_checked_over_bytes() -> None:
    checker = GrammarChecker(spec(), Config())
    checker.check(GrammarParams(regex="ab"))
    checker.check(GrammarParams(regex="c"))
    (context,) = Letters.made
    assert list(context.tokens) == [bytes([byte]) for byte in range(256)]
    assert context.encode("é") == [0xC3, 0xA9]
    assert not Alphabet.loads
    with pytest.raises(RequestError, match="the regex can't be used: it has other characters") as caught:
        checker.check(GrammarParams(regex="AB"))
    assert (caught.value.param, caught.value.hint) == ("structured_outputs", "write it in lower case")
    with pytest.raises(PluginError, match=r"test\.letters of test-wheel 1\.0 failed: SystemExit: 3"):
        checker.check(GrammarParams(regex="quits"))
    with pytest.raises(RequestError, match=r"has 200000 bytes; the limit is 131072 \(limits\.grammar_bytes\)"):
        checker.check(GrammarParams(regex="é" * 100_000))


def test_kinds_that_no_compiler_has_are_refused() -> None:
    assert (kinds_of(boot_with(spec())), kinds_of(boot_with())) == (("regex",), ())
    info = EngineInfo(max_model_len=8, vocab_size=8, block_size=1, num_blocks=1, plan={}, grammars=("regex",))
    tokenizer: Any = Alphabet()
    processor = InputProcessor(tokenizer, info, seed=0)
    regex, choice = (
        SamplingParams(structured_outputs={kind: ["a"] if kind == "choice" else "a"}) for kind in ("regex", "choice")
    )
    assert processor.checked(regex) is regex
    with pytest.raises(RequestError, match=r"structured_outputs can't be a choice \(there are regex\)"):
        processor.checked(choice)
    info.grammars = ()
    with pytest.raises(RequestError, match="structured_outputs can't be enforced here") as caught:
        processor.checked(regex)
    assert caught.value.hint


def test_the_token_table_has_the_models_size() -> None:
    tokenizer: Any = Alphabet()
    assert token_table(tokenizer, 3) == [b"<", b"=", b">"]
    assert token_table(tokenizer, 65)[61:] == [b"y", b"z", b"", b""]

"""Calls of grammars: behind the end, several tokens at once, masks in a larger buffer, and what outputs, grammars,
vocabularies and threads share."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from llmk.api import Grammar, GrammarContext, GrammarLimits
from llmk_testing.grammar_texts import INVALID
from llmk_testing.tried_grammar import SIZES, Tried, Words, kind_of, shown

_BYTES = 256


def check_ended(tried: Tried) -> None:
    """A draft may end the output, and masks are filled behind each draft: one that allows nothing would fail the
    request."""
    for example, compiled in tried.compiled():
        ids = tried.words.encode(min(example["matches"], key=len))
        for ends in (tried.words.ends, frozenset({max(tried.words.ends), ord("z")})):
            grammar = compiled.start(ends)
            grammar.accept(ids)
            before = tried.words.mask(grammar)
            for number in (1, 2):
                grammar.accept([max(ends)])
                found = tried.words.mask(grammar)
                assert found == ends, (
                    f"behind {number} ends of {shown(example)}, {_some(found ^ ends)} are "
                    f"{'allowed, which end nothing' if found - ends else 'not allowed, which end it'}"
                )
            grammar.rollback(2)
            assert tried.words.mask(grammar) == before, f"two ends of {shown(example)} leave a trace"


def check_several(tried: Tried) -> None:
    """A list that is the caller's; none, too."""
    for example, compiled in tried.compiled():
        ids = tried.words.encode(max(example["matches"], key=len))
        one, other = (compiled.start(tried.words.ends) for _ in range(2))
        for token in ids:
            one.accept([token])
        given = list(ids)
        other.accept(given)
        given.clear()
        other.accept([])
        other.rollback(0)
        right = tried.words.mask(one)
        assert tried.words.mask(other) == right, f"{len(ids)} tokens of {shown(example)} are others at once"
        assert tried.words.mask(other) == right, f"a mask of {shown(example)} is another when it is filled again"


def check_rows(tried: Tried) -> None:
    """Of several, one after the other in one buffer, as the engine has them."""
    size = -(-tried.words.size // 32)
    for example, compiled in tried.compiled():
        outputs = [compiled.start(tried.words.ends) for _ in range(3)]
        outputs[1].accept(tried.words.encode(example["matches"][0])[:1])
        alone = [_filled(output, size) for output in outputs]
        for fill in _ways(outputs):
            data = bytearray(4 * size * (len(outputs) + 2))
            rows = [memoryview(data)[4 * size * at : 4 * size * (at + 1)].cast("i") for at in range(len(outputs) + 2)]
            fill(rows[1:-1])
            found = [row.tobytes() for row in rows]
            assert found[1:-1] == alone, f"masks of {shown(example)} are others in a buffer of several"
            assert not any(found[0] + found[-1]), f"masks of {shown(example)} are written beyond their rows"


def check_own_ends(tried: Tried) -> None:
    """Outputs of one grammar may have other tokens that end them, at the same place of a text."""
    first, second = sorted(tried.words.ends)
    for example, compiled in tried.compiled():
        outputs = {end: compiled.start(frozenset({end})) for end in (first, second, first)}
        for token in tried.words.encode(example["matches"][0]):
            for end, output in outputs.items():
                _check_own(tried, output, end, shown(example))
                output.accept([token])
        for end, output in outputs.items():
            _check_own(tried, output, end, shown(example))


def _check_own(tried: Tried, output: Grammar, end: int, name: str) -> None:
    foreign = tried.words.mask(output) & (tried.words.ends - {end})
    assert not foreign, f"an output of {name} that token {end} ends may go on with {foreign}, which end others"


def check_grammars(tried: Tried) -> None:
    """Compiled one after the other, and used in turns; and for another vocabulary."""
    compiled = list(tried.compiled())
    small = Words(SIZES[0])
    other = tried.compiler(small)
    for example, grammar in compiled:
        kind, text = kind_of(example["kind"]), example["text"]
        fresh = tried.compiler(tried.words).compile(kind, text)
        outputs = [each.start(tried.words.ends) for each in (grammar, fresh)]
        for token in tried.words.encode(example["matches"][0]):
            found, right = (tried.words.mask(output) for output in outputs)
            assert found == right, f"{shown(example)} is another grammar when others are compiled by its compiler"
            for output in outputs:
                output.accept([token])
        elsewhere = other.compile(kind, text)
        for each in example["matches"]:
            why = tried.takes(elsewhere, each, small.encode(each), small)
            assert not why, f"of {shown(example)}, in a vocabulary of {small.size} tokens: {each!r} matches, but {why}"


def check_bytes(tried: Tried) -> None:
    """As requests are checked, in a process without the model: no token is special, or ends an output."""
    tokens = [bytes([byte]) for byte in range(_BYTES)]
    context = GrammarContext(tokens, frozenset(), lambda text: list(text.encode()), GrammarLimits())
    compiler = tried.make(context)
    for example in tried.examples:
        refused = tried.refuses(example["kind"], example["text"], compiler)
        assert not refused, f"{shown(example)} is refused where the 256 bytes are the vocabulary"
    for kind in tried.spec.kinds:
        for text in INVALID.get(kind, ()):
            assert tried.refuses(kind, text, compiler), f"the {kind} {text!r} is invalid, and compiles with 256 bytes"


def check_threads(tried: Tried) -> None:
    """Grammars are compiled in threads that may have ended when they are used."""
    for example in tried.examples:
        kind = kind_of(example["kind"])
        with ThreadPoolExecutor(1) as pool:
            compiler = pool.submit(tried.compiler, tried.words).result()
        with ThreadPoolExecutor(1) as pool:
            grammar = pool.submit(compiler.compile, kind, example["text"]).result()
        text = example["matches"][0]
        why = tried.takes(grammar, text, tried.words.encode(text))
        assert not why, f"{shown(example)}, compiled in another thread: {why}"


CHECKS: Mapping[str, Callable[[Tried], None]] = {
    "behind the end, what ends an output is allowed alone": check_ended,
    "several tokens are accepted as one after the other": check_several,
    "masks are written in their rows": check_rows,
    "an output is ended by its own tokens alone": check_own_ends,
    "grammars of a compiler and vocabularies are apart": check_grammars,
    "requests are checked with the 256 bytes": check_bytes,
    "what other threads compiled is used": check_threads,
}
"""The checks, by the names of their cases."""


def _ways(outputs: Sequence[Grammar]) -> list[Callable[[Sequence[memoryview]], None]]:
    def one_by_one(rows: Sequence[memoryview]) -> None:
        for output, row in zip(outputs, rows, strict=True):
            output.fill(row)

    together = getattr(type(outputs[0]), "fill_all", None)
    if together is None:
        return [one_by_one]
    return [one_by_one, lambda rows: together(list(zip(outputs, rows, strict=True)))]


def _filled(output: Grammar, size: int) -> bytes:
    bits = array("i", [0] * size)
    output.fill(memoryview(bits))
    return bits.tobytes()


def _some(tokens: frozenset[int] | set[int]) -> str:
    return ", ".join(map(str, sorted(tokens)[:5]))

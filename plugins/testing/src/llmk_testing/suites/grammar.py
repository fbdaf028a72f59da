"""The suite of grammar compilers: outputs are walked token by token, in vocabularies of awkward sizes.

``GrammarSpec.examples`` names a sequence of grammars, each a mapping with ``kind`` and ``text``, ``matches`` (texts
that match it, at least one) and ``fails`` (texts that don't). There must be some of each kind that the spec names.
"""

from __future__ import annotations

import json
import tracemalloc
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from llmk.api import Grammar, GrammarCompiler, GrammarLimits, GrammarSpec, RequestError
from llmk.api.errors import describe
from llmk.kernel.loader import load_object
from llmk_testing.bench import Bench
from llmk_testing.case import Case, Skip
from llmk_testing.character_ranges import borders, can_start, character_ranges
from llmk_testing.grammar_texts import HARD, INVALID, KNOWN, LARGE, LONG, NOTHING
from llmk_testing.settings import leaving_settings
from llmk_testing.suites import grammar_calls
from llmk_testing.tried_grammar import PADDING, SIZES, Tried, Words, kind_of, shown

LONGEST = 64
MOST_KEPT = 1 << 20
"""Bytes of a grammar that is compiled in spite of the limits."""


def cases(spec: GrammarSpec, bench: Bench) -> Iterator[Case]:
    """The cases of one compiler."""

    def case(name: str, run: Callable[[Tried], object]) -> Case:
        return Case(spec.id, "grammar", name, partial(_run, spec, bench.seed, run))

    yield case("texts that match are allowed in any tokens, and may end", check_matches)
    yield case("texts that don't match are not", check_fails)
    yield case("what it compiles of common grammars is what they say", check_known)
    yield case("random outputs always go on, and match where they end", check_random)
    yield case("ranges of characters let nothing else through, byte by byte", check_ranges)
    yield case("tokens that end the output are allowed where it may end, and not before", check_ends)
    yield case("a mask is of the vocabulary alone, without tokens that have no text", check_words)
    yield case("tokens that are taken back leave no trace", check_rollback)
    yield case("outputs of a grammar don't depend on each other", check_apart)
    yield case("masks that are filled together are those that are filled one by one", check_together)
    yield case("forced tokens are allowed, and nothing else is", check_forced)
    for name, check in grammar_calls.CHECKS.items():
        yield case(name, check)
    yield case("invalid texts are refused with RequestError", check_invalid)
    yield case("what matches nothing is refused with RequestError", check_nothing)
    if set(HARD) & set(spec.kinds):
        yield case("what can't be enforced is refused with RequestError", check_hard)
    yield case("limits are kept", check_limits)


def check_matches(tried: Tried) -> None:
    """As bytes, and in the tokens that a tokenizer would choose, unless something forces others."""
    for example, compiled in tried.compiled():
        for text in example["matches"]:
            ids = tried.words.encode(text)
            why = tried.takes(compiled, text, ids)
            assert not why, f"{text!r} matches {shown(example)}, but {why}"


def check_fails(tried: Tried) -> None:
    """No way of writing them is allowed."""
    for example, compiled in tried.compiled():
        for text in example["fails"]:
            for ids in (list(text.encode()), tried.words.encode(text)):
                assert tried.takes(compiled, text, ids), f"{text!r} doesn't match {shown(example)}, but it is allowed"


def check_known(tried: Tried) -> str:
    """Each is refused, or means what it means elsewhere."""
    taken = 0
    for kind in tried.spec.kinds:
        for text, matches, fails in KNOWN.get(kind, ()):
            if tried.refuses(kind, text):
                continue
            taken += 1
            compiled = tried.compile(kind, text)
            for each in matches:
                why = tried.takes(compiled, each, tried.words.encode(each))
                assert not why, f"{each!r} matches the {kind} {text!r}, but {why}"
            for each in fails:
                for ids in (list(each.encode()), tried.words.encode(each)):
                    assert tried.takes(compiled, each, ids), f"{each!r} is allowed by the {kind} {text!r}"
    if not taken:
        raise Skip("it compiles no kind of which there are common ones, or none of them")
    return f"{taken} grammars"


def check_random(tried: Tried) -> None:
    """Every mask allows something; where one allows the end, what was written is an output."""
    for example, compiled in tried.compiled():
        for _ in range(3):
            grammar, written = compiled.start(tried.words.ends), list[int]()
            for _ in range(LONGEST):
                allowed = tried.words.mask(grammar)
                text = b"".join(tried.words.tokens[token] for token in written)
                assert allowed, f"nothing is allowed after {text!r} of {shown(example)}"
                if tried.words.ends <= allowed:
                    why = tried.takes(compiled, str(text), written)
                    assert not why, f"{text!r} may end, by one output of {shown(example)}; by another, {why}"
                going = sorted(allowed - tried.words.ends)
                if not going:
                    break
                written.append(tried.random.choice(going))
                grammar.accept(written[-1:])


def check_ranges(tried: Tried) -> str:
    """Where they start or end at the least or largest character of so many bytes, and across surrogates, which UTF-8
    does not have. What is allowed after each byte of a character at such a border is known."""
    tried_ranges = 0
    for kind, text, before, low, high in character_ranges(tried.spec.kinds):
        if tried.refuses(kind, text):
            continue
        tried_ranges += 1
        compiled, least = tried.compile(kind_of(kind), text), 0x80 if before else 0
        for character in borders(low, high):
            grammar, written = compiled.start(tried.words.ends), b""
            grammar.accept(list(before))
            for byte in chr(character).encode():
                found = {token for token in tried.words.mask(grammar) if least <= token < 256}
                right = {each for each in range(least, 256) if can_start(bytes([*written, each]), low, high)}
                wrong = sorted(found ^ right)
                assert not wrong, (
                    f"after {before + written!r} of the {kind} {text!a}, byte {wrong[0]:#x} is "
                    f"{'allowed' if wrong[0] in found else 'not allowed'}"
                )
                written += bytes([byte])
                grammar.accept([byte])
    if not tried_ranges:
        raise Skip("it compiles no kind with ranges of characters")
    return f"{tried_ranges} ranges"


def check_ends(tried: Tried) -> None:
    """All that are named, also one that spells text, where the output may end; none of the special ones before."""
    for example, compiled in tried.compiled():
        text = min(example["matches"], key=len)
        for ends in (tried.words.ends, frozenset({max(tried.words.ends), ord("z")})):
            grammar = compiled.start(ends)
            special = ends & tried.words.ends
            for token in tried.words.encode(text):
                allowed = tried.words.mask(grammar)
                before = special & allowed
                assert before in (set(), special), f"of {special}, which end the output, only {before} are allowed"
                grammar.accept([token])
            allowed = tried.words.mask(grammar)
            assert ends <= allowed, f"of {set(ends)}, which end the output, {set(ends - allowed)} are not allowed"
            grammar.accept([max(ends)])
        fresh = tried.words.mask(compiled.start(tried.words.ends))
        may_end = "" in example["matches"]
        assert may_end or not fresh & tried.words.ends, f"the output of {shown(example)} may end before its first token"


def check_words(tried: Tried) -> None:
    """For vocabularies whose size is no multiple of 32, and that just is; also with ids behind the last token."""
    example = tried.examples[0]
    for size, padding in [(size, padding) for size in SIZES for padding in (0, PADDING)]:
        words = Words(size, padding)
        grammar = tried.compiler(words).compile(example["kind"], example["text"]).start(words.ends)
        for token in words.encode(example["matches"][0]):
            silent = [id for id in words.mask(grammar) - words.ends if not words.tokens[id]]
            assert not silent, f"token {silent[0]} is allowed, which has no text"
            grammar.accept([token])
        words.mask(grammar)


def check_rollback(tried: Tried) -> None:
    """Of any number of tokens, with an end among them; of long outputs, too."""
    for example, compiled in tried.compiled():
        ids = [*tried.words.encode(example["matches"][0]), max(tried.words.ends)]
        grammar, masks = compiled.start(tried.words.ends), []
        for token in ids:
            masks.append(tried.words.mask(grammar))
            grammar.accept([token])
        for back in range(1, len(ids) + 1):
            grammar.rollback(back)
            found = tried.words.mask(grammar)
            what = f"another mask after {back} of {len(ids)} tokens of {shown(example)} were taken back"
            assert found == masks[len(ids) - back], what
            grammar.accept(ids[len(ids) - back :])
    for kind in tried.spec.kinds:
        _check_long_rollback(tried, kind, *LONG[kind])


def _check_long_rollback(tried: Tried, kind: str, text: str, output: str) -> None:
    """Of hundreds of tokens: all, and some."""
    if tried.refuses(kind, text):
        return
    ids = list(output.encode())
    grammar, backs = tried.compile(kind_of(kind), text).start(tried.words.ends), (1, 20, len(ids) // 2, len(ids))
    masks = dict[int, set[int]]()
    for at, token in enumerate(ids):
        if len(ids) - at in backs:
            masks[len(ids) - at] = tried.words.mask(grammar)
        grammar.accept([token])
    for back in backs:
        grammar.rollback(back)
        found = tried.words.mask(grammar)
        assert found == masks[back], f"another mask after {back} of {len(ids)} tokens were taken back"
        grammar.accept(ids[len(ids) - back :])


def check_apart(tried: Tried) -> None:
    """Two outputs, by turns."""
    for example, compiled in tried.compiled():
        ids = tried.words.encode(example["matches"][0])
        first = compiled.start(tried.words.ends)
        start = tried.words.mask(first)
        first.accept(ids[:1])
        other = compiled.start(tried.words.ends)
        assert tried.words.mask(other) == start, f"an output of {shown(example)} starts where another is"
        after = tried.words.mask(first)
        other.accept(ids)
        assert tried.words.mask(first) == after, f"an output of {shown(example)} goes on with another"


def check_together(tried: Tried) -> None:
    """Of outputs of all examples, at different places of them, one that has ended among them."""
    outputs: list[Grammar] = []
    for example, compiled in tried.compiled():
        ids = tried.words.encode(example["matches"][0])
        for length in (0, 1, len(ids)):
            outputs.append(compiled.start(tried.words.ends))
            outputs[-1].accept(ids[:length])
    outputs[-1].accept([max(tried.words.ends)])
    kinds = {type(output) for output in outputs if hasattr(type(output), "fill_all")}
    for kind in kinds:
        same = [output for output in outputs if type(output) is kind]
        rows = [(output, memoryview(array("i", [0] * -(-tried.words.size // 32)))) for output in same]
        kind.fill_all(rows)
        for number, (output, bits) in enumerate(rows):
            alone = array("i", [0] * len(bits))
            output.fill(memoryview(alone))
            assert bits.tobytes() == alone.tobytes(), f"mask {number} of {len(rows)} is another one when filled alone"


def check_forced(tried: Tried) -> None:
    """As drafts, others would be worth nothing."""
    for example, compiled in tried.compiled():
        grammar = compiled.start(tried.words.ends)
        for token in tried.words.encode(example["matches"][0]):
            forced = list(getattr(grammar, "forced", tuple)())
            for id in forced:
                allowed = tried.words.mask(grammar)
                assert allowed == {id}, f"token {id} is forced by {shown(example)}, where {sorted(allowed)} are allowed"
                grammar.accept([id])
            grammar.rollback(len(forced))
            grammar.accept([token])


def check_invalid(tried: Tried) -> None:
    """The client is answered what is wrong with it."""
    for kind in tried.spec.kinds:
        for text in INVALID.get(kind, ()):
            assert tried.refuses(kind, text), f"the {kind} {text!r} is invalid, and was compiled"


def check_nothing(tried: Tried) -> None:
    """The request could only fail later."""
    texts = [(kind, text) for kind in tried.spec.kinds for text in NOTHING.get(kind, ())]
    if not texts:
        raise Skip("it compiles no kind that can match nothing")
    for kind, text in texts:
        assert tried.refuses(kind, text), f"the {kind} {text!r} matches nothing, and was compiled"


def check_hard(tried: Tried) -> str:
    """Each is refused, or enforced."""
    hard = [(kind, *each) for kind in tried.spec.kinds for each in HARD.get(kind, ())]
    for kind, text, output in [each for each in hard if each[0] == "json"]:
        hard.append((kind, json.dumps(json.loads(text) | {"x-guidance": {"lenient": True}}), output))
    refused = 0
    for kind, text, output in hard:
        if tried.refuses(kind, text):
            refused += 1
            continue
        why = tried.takes(tried.compile(kind_of(kind), text), output, list(output.encode()))
        assert why, f"the {kind} {text} was compiled, and allows {output!r}"
    return f"{refused} of {len(hard)} refused"


def check_limits(tried: Tried) -> None:
    """What has thousands of parts is more than a hundred symbols. Compiling it says so, for the client to learn it."""
    large = {
        "regex": "|".join(f"(x{number}y{number}|z{{{number}}})" for number in range(3000)),
        "choice": json.dumps([f"{number} text {number}" for number in range(3000)]),
        "json": json.dumps({"type": "object", "properties": {f"p{n}": {"type": "integer"} for n in range(3000)}}),
        "lark": "start: a_0\n" + "\n".join(f'a_{n}: "x{n}" a_{n + 1}' for n in range(3000)) + '\na_3000: "y"',
    }
    compiler = tried.compiler(tried.words, GrammarLimits(symbols=100, states=10))
    short = [(kind, text) for kind in tried.spec.kinds for text in LARGE.get(kind, ())]
    for kind, text in (*((kind, large[kind]) for kind in tried.spec.kinds), *short):
        try:
            compiled = compiler.compile(kind_of(kind), text)
        except RequestError:
            continue
        try:
            compiled.start(tried.words.ends)
        except RequestError as error:
            what = f"{describe(error)} is found where an output of the {kind} starts: the request was admitted"
            raise AssertionError(what) from error
        if kind in ("json", "lark") and text == large[kind]:
            raise AssertionError(f"a {kind} grammar of 3,000 parts was compiled, with a limit of 100 symbols")
    if "choice" in tried.spec.kinds:
        _check_long_choices(compiler)


def _check_long_choices(compiler: GrammarCompiler) -> None:
    """A few long texts cost as much as many short ones, unless a compiler needs no more than the text for each: what is
    compiled in spite of the limits takes little memory."""
    for count, character in ((1, "x"), (50, "日")):
        texts = [f"{number}{character * (20_000 // count)}" for number in range(count)]
        tracemalloc.start()
        try:
            compiled = compiler.compile("choice", json.dumps(texts))
            kept, _ = tracemalloc.get_traced_memory()
        except RequestError:
            continue
        finally:
            tracemalloc.stop()
        what = f"of {count} texts of 20,000 characters, with a limit of 100 symbols, {compiled} keeps {kept:,} bytes"
        assert kept <= MOST_KEPT, f"a choice {what}"


def _run(spec: GrammarSpec, seed: int, check: Callable[[Tried], Any]) -> str | None:
    with leaving_settings():
        found: str | None = check(Tried(load_object(spec.implementation), spec, seed))
    return found

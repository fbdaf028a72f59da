"""The compiler: what it refuses, vocabularies of odd tokenizers, ends, and tokens that are taken back."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from llmk.api import GrammarContext, GrammarLimits, RequestError
from llmk_grammar.compiler import WHITESPACE, Compiler, Output

BYTES = [bytes([byte]) for byte in range(256)]
SPECIAL = [b"<end>", b"<im>"]
END, IM = 256, 257


def by_bytes(text: str) -> list[int]:
    return list(text.encode())


def compiler(
    tokens: Sequence[bytes] = (*BYTES, *SPECIAL),
    encode: Callable[[str], list[int]] = by_bytes,
    limits: GrammarLimits | None = None,
) -> Compiler:
    return Compiler(GrammarContext(tokens, frozenset({END, IM}), encode, limits or GrammarLimits()))


def mask(grammar: Any, size: int = 258) -> list[int]:
    bits = array("i", [0] * -(-size // 32))
    grammar.fill(memoryview(bits))
    return [token for token in range(32 * len(bits)) if bits[token // 32] >> token % 32 & 1]


MANY = {"anyOf": [{"properties": {f"p{n}": {"const": n}}} for n in range(9)]}
REFUSED = [
    ("regex", "(a", "unclosed group"),
    ("regex", "a\\", "the backslash at its end escapes nothing"),
    ("regex", "(?=a)b", "look-around, including look-ahead and look-behind, is not supported"),
    ("regex", r"(a)\1", "backreferences are not supported"),
    ("regex", r"a\b", "lookarounds not supported yet"),
    ("regex", r"[^\s\S]", "nothing matches it"),
    ("regex", "a\ud800", "it is not valid Unicode"),
    ("json", "", "it is not a JSON schema: EOF while parsing"),
    ("json", "{", "it is not a JSON schema: EOF while parsing"),
    ("json", "[1]", "it is not a JSON schema"),
    ("json", "false", "nothing matches it"),
    ("json", '{"type": "thing"}', "Invalid type: thing"),
    ("json", '{"not": {}}', 'not can\'t be enforced'),
    ("json", '{"type": "array", "uniqueItems": true}', 'uniqueItems can\'t be enforced'),
    ("json", '{"x-guidance": {"lenient": true}, "not": {}}', 'not can\'t be enforced'),
    ("json", '{"properties": {"a": {"x-guidance": {"lenient": true}, "not": {}}}}', 'not can\'t be enforced'),
    ("json", '{"oneOf": [{"type": "number"}, {"type": "integer"}]}', "oneOf constraints are not supported"),
    ("json", '{"type": "string", "format": "color"}', "Unknown format: color"),
    ("json", '{"$ref": "https://example.com/a"}', "is not present in a registry"),
    ("json", '{"$ref": "#/$defs/a"}', "does not exist"),
    ("json", '{"$ref": "#"}', "nothing matches it"),
    ("json", '{"type": "integer", "minimum": 3, "maximum": 1}', "minimum (3) is greater than maximum (1)"),
    ("json", '{"enum": []}', "Unsatisfiable schema"),
    ("json", '{"items": ' * 500 + "{}" + "}" * 500, "recursion limit exceeded"),
    ("json", json.dumps({"allOf": [MANY for _ in range(9)]}), "schema too large"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "message"), REFUSED)
def test_what_can_not_be_enforced_is_refused(kind: Any, text: str, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        compiler().compile(kind, text)
    assert message in caught.value.message
    assert "\n" not in caught.value.message
    assert "lenient" not in caught.value.message


def walk(grammar: Any, tokens: bytes) -> None:
    for token in tokens:
        mask(grammar)
        grammar.accept([token])


BOMBS = [
    ("regex", "((a{0,100}){0,100}){0,100}"),
    ("regex", "(a|b)*a(a|b){30}"),
    ("regex", r"(\p{L}{1,100}\p{N}{1,100}){1,100}"),
    ("choice", json.dumps([f"{number} text {number}" for number in range(5000)])),
    ("json", json.dumps({"type": "object", "properties": {f"p{n}": {"pattern": f"^{n}[a-z]+$"} for n in range(1000)}})),
    ("json", '{"type": "string", "minLength": 100000000, "maxLength": 200000000}'),
    ("json", '{"type": "array", "items": {"type": "integer"}, "minItems": 1000000}'),
    ("json", json.dumps({"$defs": {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(30)}
                         | {"d30": {"type": "null"}}, "$ref": "#/$defs/d0"})),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text"), BOMBS)
def test_bombs_are_refused_or_cost_little(kind: Any, text: str) -> None:
    """The suite's time limit would be exceeded otherwise; a step that costs too much ends with an error."""
    with suppress(RequestError):
        grammar = compiler().compile(kind, text).start(frozenset({END}))
        for _ in range(200):
            going = [token for token in mask(grammar) if token != END]
            if not going:
                break
            grammar.accept(going[:1])


@pytest.mark.parametrize("text", ["\u0663", "\u00e9", "\u00a0"])
@pytest.mark.parametrize("kind", ["regex", "json"])
def test_digits_and_letters_are_those_of_unicode_in_regexes_and_of_ascii_in_patterns(kind: Any, text: str) -> None:
    """A digit, a letter and a space, as docs/structured-outputs.md says."""
    grammar = r"[\d\w\s]" if kind == "regex" else json.dumps({"type": "string", "pattern": r"^[\d\w\s]$"})
    started = compiler().compile(kind, grammar).start(frozenset({END}))
    if kind == "json":
        started.accept(b'"')
    assert (text.encode()[0] in mask(started)) == (kind == "regex" or text.isspace())
    assert ord("7") in mask(started)


def test_limits_are_kept() -> None:
    schema = json.dumps({"type": "object", "properties": {f"p{n}": {"type": "integer"} for n in range(500)}})
    compiler().compile("json", schema)
    with pytest.raises(RequestError, match="grammar size"):
        compiler(limits=GrammarLimits(symbols=200)).compile("json", schema)
    grammar = compiler(limits=GrammarLimits(states=40)).compile("regex", "(a|b)*a(a|b){20}").start(frozenset({END}))
    with pytest.raises(RequestError, match="the output can't be matched further"):
        walk(grammar, b"ababbabbbababababaabbbaabababbbabab")


def test_a_mask_of_another_vocabulary_is_refused() -> None:
    grammar = compiler().compile("regex", "a").start(frozenset({END}))
    with pytest.raises(ValueError, match="a mask of 12 words, for a vocabulary of 258 tokens"):
        mask(grammar, size=384)
    assert mask(grammar) == [ord("a")]


def test_a_token_that_is_not_allowed_is_refused() -> None:
    grammar = compiler().compile("regex", "ab").start(frozenset({END}))
    for token in (ord("b"), END, 255):
        with pytest.raises(ValueError, match=f"token {token} is not allowed here"):
            grammar.accept([token])
    assert mask(grammar) == [ord("a")]


def test_stop_tokens_end_the_output_where_it_may_end() -> None:
    stop = ord("}")
    grammar = compiler().compile("regex", r"\{a?\}x?").start(frozenset({END, stop}))
    assert mask(grammar) == [ord("{")]
    grammar.accept([ord("{")])
    assert mask(grammar) == sorted([ord("a"), stop]), "as a part of the text it is allowed too"
    grammar.accept([stop])
    assert mask(grammar) == [ord("x"), stop, END]
    grammar.accept([stop])
    assert mask(grammar) == [stop, END]
    grammar.accept([END])
    assert grammar.forced() == ()
    grammar.rollback(2)
    assert mask(grammar) == [ord("x"), stop, END]
    grammar.rollback(1)
    assert mask(grammar) == sorted([ord("a"), stop])


@pytest.mark.parametrize("size", [286, 287, 288, 289, 319, 320, 321])
def test_masks_of_any_vocabulary(size: int) -> None:
    """The token that stands for the end is behind the model's own."""
    tokens = [*BYTES, *SPECIAL, *[b"ab"] * (size - 258)]
    grammar = compiler(tokens).compile("regex", "(ab)?").start(frozenset({END}))
    assert mask(grammar, size) == [ord("a"), END, *range(258, size)]
    grammar.accept([size - 1])
    assert mask(grammar, size) == [END]


def test_bytes_without_a_token() -> None:
    """What no token can write is found where it is needed."""
    tokens = [b"" if byte == b"c" else byte for byte in BYTES]
    grammar = compiler([*tokens, *SPECIAL]).compile("regex", "ab?c|ad").start(frozenset({END}))
    grammar.accept(b"ab")
    with pytest.raises(RequestError, match="the output can't be matched further"):
        mask(grammar)


PIECES = [*BYTES, *SPECIAL, b" yes", b"yes", b", ", b"sir"]


def with_space(text: str) -> list[int]:
    """As tokenizers that put a space before a text."""
    return longest(f" {text}")


def longest(text: str) -> list[int]:
    found: list[int] = []
    data = text.encode()
    while data:
        best = max(
            (token for token, piece in enumerate(PIECES) if data.startswith(piece)), key=lambda t: len(PIECES[t])
        )
        found.append(best)
        data = data[len(PIECES[best]) :]
    return found


@pytest.mark.parametrize("encode", [longest, with_space, by_bytes, lambda text: [IM]])
def test_forced_tokens_write_the_text(encode: Callable[[str], list[int]]) -> None:
    """No matter what the tokenizer makes of a text by itself."""
    grammar = compiler(PIECES, encode).compile("choice", '["yes, sir", "<im>"]').start(frozenset({END}))
    assert mask(grammar, len(PIECES)) == [ord("<"), ord("y"), 259] or encode is not longest
    grammar.accept([ord("y")])
    forced = list(grammar.forced())
    assert b"".join(PIECES[token] for token in forced) == b"es, sir"
    grammar.accept(forced)
    assert mask(grammar, len(PIECES)) == [END]
    other = compiler(PIECES, encode).compile("choice", '["<im>"]').start(frozenset({END}))
    assert b"".join(PIECES[token] for token in other.forced()) == b"<im>"
    assert IM not in other.forced()


def test_white_space_is_bounded() -> None:
    assert WHITESPACE.endswith("{0,64}")
    grammar = compiler().compile("json", '{"type": "array"}').start(frozenset({END}))
    grammar.accept(b"[" + b" " * 64)
    assert ord(" ") not in mask(grammar)


def test_properties_come_in_the_schemas_order() -> None:
    schema = '{"type": "object", "properties": {"z": {"const": 1}, "a": {"const": 2}}, "required": ["z", "a"]}'
    grammar = compiler().compile("json", schema).start(frozenset({END}))
    grammar.accept(b'{"')
    assert mask(grammar) == [ord("z")]


def test_compiled_grammars_are_used_from_other_threads() -> None:
    made = compiler()

    def last_mask(number: int) -> list[int]:
        grammar = made.compile("regex", f"[a-c]{{{number}}}").start(frozenset({END}))
        for _ in range(number):
            grammar.accept(mask(grammar)[:1])
        return mask(grammar)

    with ThreadPoolExecutor(1) as pool:
        compiled = pool.submit(made.compile, "regex", "[a-c]{9}").result()
    first, second = compiled.start(frozenset({END})), compiled.start(frozenset({END}))
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda one: [one.accept(mask(one)[:1]) for _ in range(9)], (first, second)))
    assert mask(first) == mask(second) == last_mask(3) == [END]


@pytest.mark.parametrize("vocabulary", [(*BYTES, *SPECIAL), (*BYTES, *SPECIAL, *[b"x"] * 30)], ids=["258", "288"])
def test_masks_filled_together_equal_those_filled_one_by_one(vocabulary: Sequence[bytes]) -> None:
    made, size = compiler(vocabulary), len(vocabulary)
    texts = ["[ab]{2,4}", "ab", "(x|y)z*", "é+"]
    outputs = [made.compile("regex", text).start(frozenset({END})) for text in texts for _ in range(4)]
    for number, output in enumerate(outputs):
        for _ in range(number % 4):
            output.accept(mask(output, size)[:1])
    rows = [(output, memoryview(array("i", [0] * -(-size // 32)))) for output in outputs]
    Output.fill_all(rows)
    for output, bits in rows:
        assert [token for token in range(size) if bits[token // 32] >> token % 32 & 1] == mask(output, size)
    assert any(END in mask(output, size) for output in outputs)

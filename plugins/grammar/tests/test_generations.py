"""Random outputs under a mask are instances of their grammars: 1,000 and more, of more than 100 schemas."""

from __future__ import annotations

import json
import re
from array import array
from pathlib import Path
from random import Random
from typing import Any

import jsonschema
import pytest
import torch
from torch import Tensor

import llmk_models
from llmk.api import CompiledGrammar, GrammarContext
from llmk.engine.text.grammars import token_table
from llmk.engine.text.tokenizer import Tokenizer
from llmk.planning.checkpoint.folder import read_checkpoint
from llmk.reference.sampling.sample import apply_mask
from llmk_grammar.compiler import Compiler

LONGEST = 1500
"""Tokens within which an output must have ended."""
CLOSING = {b'"': 1.0, b'"}': 1.0, b'"]': 1.0, b"}": 0.8, b"]": 0.8, b"a": 0.9, b"b": 0.9, b"@": 1.0, b".": 1.0}
"""Which tokens end an output sooner or later, and how much more likely they become."""

PATTERNS = (r"^\d{3}$", "^(ab|c)*$", r"^\w+@\w+\.(com|org)$", "^.{0,6}$")
TREE = {
    "type": "object",
    "properties": {"leaf": {"type": "integer"}, "left": {"$ref": "#/$defs/tree"}},
    "required": ["leaf"],
    "additionalProperties": False,
}
SCHEMAS: tuple[Any, ...] = (
    True,
    {},
    {"type": "null"},
    {"type": ["integer", "null"]},
    {"const": {"a": [1, None, "é\n"]}},
    {"enum": [1, "two", None, [3], {"four": 4.5}]},
    {"type": "string", "minLength": 3, "maxLength": 5},
    {"type": "string", "pattern": "^[a-z]{2,4}-[0-9]+$"},
    {"type": "string", "pattern": "ab"},
    {"type": "integer", "minimum": -3, "exclusiveMaximum": 120},
    {"type": "number", "exclusiveMinimum": 0, "maximum": 2.5},
    {"type": "integer", "multipleOf": 7},
    {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False, "minItems": 2},
    {"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 2, "maxItems": 4},
    {"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 3},
    {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a", "b"]},
    {"type": "object", "properties": {"ключ": {"type": "null"}, "a b": {"const": "\u2028\\\""}}, "required": ["a b"]},
    {"type": "object", "patternProperties": {"^n[0-9]$": {"type": "integer"}}, "additionalProperties": False},
    {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "array", "items": {"type": "null"}}]},
    {"oneOf": [{"type": "boolean"}, {"type": "integer", "minimum": 1, "maximum": 9}]},
    {"allOf": [{"type": "object", "required": ["a"]}, {"properties": {"a": {"type": "integer"}}}]},
    {"$defs": {"tree": TREE}, "$ref": "#/$defs/tree"},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "uuid"},
    {"type": "string", "format": "ipv4"},
)  # fmt: skip


def invented(random: Random, depth: int = 3) -> dict[str, Any]:
    """A random schema."""
    kinds = ["string", "integer", "number", "boolean", "enum", "const", "pattern"]
    kind = random.choice([*kinds, "object", "object", "array", "anyOf"] if depth else kinds)
    low = random.randint(-500, 400)
    if kind == "object":
        names = random.sample(["name", "id", "größe", "a b", "x" * 30, '"', "tags", "0"], random.randint(0, 4))
        properties = {name: invented(random, depth - 1) for name in names}
        required = [name for name in names if random.random() < 0.6]
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    if kind == "array":
        least = random.randint(0, 3)
        bounds = {"minItems": least, "maxItems": least + random.randint(0, 3)}
        return {"type": "array", "items": invented(random, depth - 1), **bounds}
    if kind == "anyOf":
        return {"anyOf": [invented(random, depth - 1) for _ in range(random.randint(1, 3))]}
    if kind == "enum":
        return {"enum": random.sample(["red", "grün", 7, -1.5, None, True, [], {"a": 1}], random.randint(1, 5))}
    if kind == "const":
        return {"const": random.choice(["", "a\tb", 0, {"k": ["v"]}])}
    if kind == "pattern":
        return {"type": "string", "pattern": random.choice(PATTERNS)}
    if kind == "string":
        return {"type": "string"} if random.random() < 0.5 else {"type": "string", "maxLength": random.randint(0, 12)}
    bounded = random.random() < 0.7 and kind != "boolean"
    return {"type": kind} | ({"minimum": low, "maximum": low + random.randint(0, 900)} if bounded else {})


class Model:
    """Random logits over the vocabulary of the demo model, and the tokens that it draws."""

    def __init__(self) -> None:
        path = Path(llmk_models.__file__).parent / "demo"
        self.tokenizer = Tokenizer.load(read_checkpoint(str(path)))
        self.vocab = json.loads((path / "config.json").read_text())["vocab_size"]
        self.table = token_table(self.tokenizer, self.vocab)
        self.ends = frozenset(self.tokenizer.eos_token_ids)
        self.compiler = Compiler(GrammarContext(self.table, self.tokenizer.special_token_ids, self._encode))
        self._closing = torch.tensor([CLOSING.get(text, 0.0) for text in self.table])
        self._closing[list(self.ends)] = 1.0

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def write(self, compiled: CompiledGrammar, seed: int) -> str:
        """An output. The longer it is, the more likely is what ends it."""
        random, grammar = torch.Generator().manual_seed(seed), compiled.start(self.ends)
        tokens: list[int] = []
        for length in range(LONGEST):
            logits = torch.randn(1, self.vocab, generator=random) + self._closing * min(length / 8, 25.0)
            apply_mask(logits, torch.tensor([0]), self.mask(grammar)[None])
            token = int(torch.softmax(logits, -1).multinomial(1, generator=random))
            forced = grammar.forced()
            assert not forced or token == forced[0], (forced, token)
            grammar.accept([token])
            if token in self.ends:
                return b"".join(self.table[token] for token in tokens).decode()
            tokens.append(token)
        raise AssertionError(f"no end after {LONGEST} tokens: {self.tokenizer.decode(tokens)[:500]!r}")

    def mask(self, grammar: Any) -> Tensor:
        bits = array("i", [0] * -(-self.vocab // 32))
        grammar.fill(memoryview(bits))
        return torch.tensor(bits, dtype=torch.int32)


@pytest.fixture(scope="module")
def model() -> Model:
    return Model()


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(SCHEMAS)))
def test_outputs_are_instances_of_their_schema(model: Model, number: int) -> None:
    check_schema(model, SCHEMAS[number], range(12))


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(10))
def test_outputs_are_instances_of_invented_schemas(model: Model, batch: int) -> None:
    for seed in range(10 * batch, 10 * batch + 10):
        check_schema(model, invented(Random(seed)), range(seed, seed + 10))


def check_schema(model: Model, schema: Any, seeds: range) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    compiled = model.compiler.compile("json", json.dumps(schema))
    for seed in seeds:
        text = model.write(compiled, seed)
        problem = jsonschema.exceptions.best_match(validator.iter_errors(json.loads(text)))
        assert problem is None, f"{text!r} of {schema}: {problem.message}"


REGEXES = (r"[ab]{3,7}c?", r"(\+49|0)[1-9]\d{2,9}", r"(yes|no), because .{5,30}\.", "", "é+|ё{2}", r"^\{\}$", "a\\$")


@pytest.mark.parametrize("regex", REGEXES)
def test_outputs_match_their_regex(model: Model, regex: str) -> None:
    compiled = model.compiler.compile("regex", regex)
    for seed in range(10):
        text = model.write(compiled, seed)
        assert re.fullmatch(regex, text, re.DOTALL), text


def test_outputs_are_among_the_choices(model: Model) -> None:
    choices = ["yes", "yes, but", "no", "maybe né", "a.b*c", "x y", "l\nm", "q-#&~<>", "<|im_end|>", "\\d"]
    compiled = model.compiler.compile("choice", json.dumps(choices))
    assert {model.write(compiled, seed) for seed in range(300)} == set(choices)

"""Every keyword of JSON Schema in every place: what is enforced is enforced wholly, and what can't be is refused."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from schemas import all_schemas

from llmk import LLM, SamplingParams
from llmk.api import GrammarContext, RequestError
from llmk_grammar.compiler import Compiler

SCHEMAS = dict(all_schemas())
_SOONER = '"]}0123456789'
"""Characters that are taken first where an output has become long, so that it ends."""
_LONG, _LONGEST = 150, 3000


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    return Compiler(
        GrammarContext([bytes([byte]) for byte in range(256)], frozenset(), lambda text: list(text.encode()))
    )


def outputs(compiler: Compiler, schema: Any, count: int, seed: int) -> Iterator[str]:
    """Random outputs that the compiled schema allows, whole ones alone. Raises RequestError where it is refused."""
    compiled, random_ = compiler.compile("json", json.dumps(schema)), random.Random(seed)
    for _ in range(count):
        grammar, written = compiled.start(frozenset({0})), bytearray()
        while len(written) < _LONGEST:
            bits = bytearray(32)
            grammar.fill(memoryview(bits).cast("i"))
            allowed = [byte for byte in range(256) if bits[byte >> 3] >> (byte & 7) & 1]
            if 0 in allowed and (len(allowed) == 1 or len(written) > _LONG or random_.random() < 0.3):
                yield written.decode()
                break
            allowed = [byte for byte in allowed if byte]
            sooner = [byte for byte in allowed if chr(byte) in _SOONER] if len(written) > _LONG else []
            token = sooner[0] if sooner else random_.choice(allowed)
            grammar.accept([token])
            written.append(token)


def is_instance(text: str, schema: Any) -> bool:
    checker = jsonschema.Draft202012Validator(schema)
    return checker.is_valid(json.loads(text))


def test_there_are_enough() -> None:
    assert len(SCHEMAS) >= 400


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEMAS)
def test_outputs_are_instances_and_refusals_name_the_keyword(compiler: Compiler, name: str) -> None:
    schema = SCHEMAS[name]
    found, refusal = [], ""
    try:
        found = list(outputs(compiler, schema, 6, seed=len(name)))
    except RequestError as error:
        refusal = error.message
    for text in found:
        assert is_instance(text, schema), text
    if refusal and "nsatisfiable" not in refusal:
        assert any(key in refusal for key in _keys(schema)), refusal


def test_most_are_enforced(compiler: Compiler) -> None:
    """So that refusing everything does not pass."""
    refused = set()
    for name, schema in SCHEMAS.items():
        try:
            compiler.compile("json", json.dumps(schema))
        except RequestError:
            refused.add(name)
    assert len(refused) < len(SCHEMAS) / 4, sorted(refused)


def _keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
        for inner in value.values():
            yield from _keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _keys(inner)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_demo_model_writes_instances(compiler: Compiler) -> None:
    """Outputs that end are instances; those that are cut off are the start of one, which their compiler checks."""
    accepted = []
    for name, schema in SCHEMAS.items():
        try:
            compiler.compile("json", json.dumps(schema))
        except RequestError:
            continue
        accepted.append((name, schema))
    assert len(accepted) >= 400
    sampling = {"max_tokens": 200, "temperature": 1.0, "frequency_penalty": 1.0}
    params = [
        SamplingParams(**sampling, seed=seed, structured_outputs={"json": schema})
        for seed, (_, schema) in enumerate(accepted)
    ]
    scheduler = {"max_num_seqs": 32}
    with LLM(max_model_len=512, dtype="float32", cache={"memory_gib": 0.25}, scheduler=scheduler) as llm:
        answers = llm.generate(["Write it as JSON: "] * len(accepted), params)
    ended = 0
    for (name, schema), answer in zip(accepted, answers, strict=True):
        output = answer.outputs[0]
        if output.finish_reason == "stop":
            ended += 1
            assert is_instance(output.text, schema), (name, output.text)
    assert ended > 0.8 * len(accepted)

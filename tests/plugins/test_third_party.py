"""A stranger's wheel, with one attention backend and one tool parser: picked up with no change to the core."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scratch import Environment

pytestmark = pytest.mark.slow_file

PIN = '[select.attention]\nuse = "acme.attention"\n'
PARSER = """
import json
from dataclasses import replace
from llmk.api import ParserContext
from llmk.config import load
from llmk.planning.boot import boot
from llmk.kernel.loader import load_object
from llmk.planning.choices.parsers import choose_parser
from llmk_testing.parsers import check_parser, parse

def choose(checkpoint, **select):
    config = load({f"select.tool_parser.{key}": value for key, value in select.items()}).config
    return choose_parser(booted.registry, "tool", config, checkpoint)[0].spec

booted = boot(load(), verify=False)
own = booted.checkpoint
spec = choose(own, use="brackets")
make = lambda: load_object(spec.implementation)(ParserContext())
check_parser(make, ['Let me see: [[call weather {"city": "Oslo"}]] Done', "[[call no json]] [[call"])
answer = parse(make, ["Let me see: [", '[call weather {"city": ', '"Oslo"}', "]] Done [[", "call"])
print(json.dumps({
    "pinned": spec.id,
    "claimed": choose(replace(own, chat_template="[[call name {}]]")).id,
    "unpinned": choose(own).id,
    "content": answer.content,
    "calls": [[call.name, call.arguments] for call in answer.calls],
}))
"""
GENERATE = """
import json
from llmk import LLM, SamplingParams
prompts = ["What is 12 plus 30?", "What is the capital of France? Answer in one sentence, please.", "Hello"]
with LLM() as llm:
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=24, ignore_eos=True))
print(json.dumps([list(output.outputs[0].token_ids) for output in outputs]))
"""


@pytest.fixture(scope="module")
def environment(
    make_environment: Callable[..., Environment], wheels: dict[str, Path], fixture_wheels: dict[str, Path]
) -> Environment:
    return make_environment(*wheels.values(), fixture_wheels["third_party"])


def explain(environment: Environment, cwd: Path, *flags: str) -> Any:
    done = environment.llmk("explain", *flags, "--json", cwd=cwd)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def attention(plan: Any) -> Any:
    (choice,) = (choice for choice in plan["choices"] if choice["kind"] == "attention")
    return choice


def test_installing_it_changes_no_winner_but_is_mentioned(environment: Environment, tmp_path: Path) -> None:
    choice = attention(explain(environment, tmp_path))
    assert choice["pieces"][0]["id"] != "acme.attention"
    (rejected,) = (rejection for rejection in choice["rejected"] if rejection["id"] == "acme.attention")
    assert rejected["distribution"] == "acme-llmk"
    assert [reason["code"] for reason in rejected["reasons"]] == ["not_vouched"]
    shown = environment.llmk("explain", cwd=tmp_path).stdout
    assert "acme.attention" in shown
    assert '[select.attention] prefer = ["acme.attention"]' in shown


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (PIN, "pinned"),
        ('[select.attention]\nprefer = ["acme.attention"]\n', "preferred"),
        ('[plugins]\ntrust = ["acme-llmk"]\n', "tier vendor"),
    ],
)
def test_it_wins_when_the_config_says_so(environment: Environment, tmp_path: Path, config: str, why: str) -> None:
    (tmp_path / "llmk.toml").write_text(config)
    plan = explain(environment, tmp_path)
    (piece,) = attention(plan)["pieces"]
    assert (piece["id"], piece["distribution"], piece["version"]) == ("acme.attention", "acme-llmk", "1.0")
    assert why in piece["why"]
    assert ["acme-llmk", "1.0"] in plan["wheels"]


def test_its_parser_is_found_by_name_and_by_dialect(environment: Environment, tmp_path: Path) -> None:
    done = environment.run(PARSER, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "pinned": "acme.brackets",
        "claimed": "acme.brackets",
        "unpinned": "parsers.hermes",
        "content": "Let me see:  Done [[call",
        "calls": [["weather", '{"city": "Oslo"}']],
    }


@pytest.mark.slow
def test_it_serves_the_same_tokens(environment: Environment, tmp_path: Path) -> None:
    """The demo model in float32, on the stranger's attention: another cache layout, the same greedy tokens."""
    (tmp_path / "acme").mkdir()
    (tmp_path / "own").mkdir()
    (tmp_path / "acme/llmk.toml").write_text(PIN)
    trace = tmp_path / "trace"
    theirs = environment.run(GENERATE, cwd=tmp_path / "acme", ACME_TRACE_FILE=str(trace), LLMK__MODEL__DTYPE="float32")
    assert theirs.returncode == 0, theirs.stderr
    assert trace.read_text() == "attention", "the stranger's backend must have been built"
    ours = environment.run(GENERATE, cwd=tmp_path / "own", LLMK__MODEL__DTYPE="float32")
    assert ours.returncode == 0, ours.stderr
    tokens = json.loads(ours.stdout.splitlines()[-1])
    assert json.loads(theirs.stdout.splitlines()[-1]) == tokens
    assert [len(row) for row in tokens] == [24, 24, 24]


def test_without_the_wheel_the_pin_is_fatal(environment: Environment, tmp_path: Path) -> None:
    (tmp_path / "llmk.toml").write_text(PIN + '[plugins]\ndisable = ["acme"]\n')
    done = environment.llmk("explain", cwd=tmp_path)
    assert done.returncode in (3, 4)
    assert "acme" in done.stderr

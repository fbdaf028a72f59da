from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from llmk.api import Checkpoint, ParserQuery, ParserSpec
from llmk.config import Config
from llmk.config.schema import PluginsSection
from llmk.kernel.registry import Registry
from llmk.planning.choices.parsers import choose_parser
from llmk_parsers import specs
from llmk_parsers.claims import only_by_name

SPECS = [*specs.llmk_reasoning_parsers(), *specs.llmk_tool_parsers()]

CHECKPOINTS = sorted((Path(__file__).parent / "checkpoints").glob("*.jinja"))
"""Chat templates, shortened to what shows the dialect. The first line of each is a comment with the names of the
parsers that must be chosen (``reasoning``, ``tools``) and the checkpoint's ``config``."""


KINDS = {"reasoning": "reasoning", "tool": "tools"}
"""The kinds of parsers, and their names in the first lines of templates."""


def read(path: Path) -> tuple[dict[str, Any], Checkpoint]:
    head, _, template = path.read_text().partition("\n")
    wanted = json.loads(head.removeprefix("{#").removesuffix("#}"))
    return wanted, Checkpoint(path=Path(), config=wanted.get("config", {}), chat_template=template or None)


@cache
def registry() -> Registry:
    return Registry.discover(PluginsSection())


def chosen(kind: str, checkpoint: Checkpoint) -> tuple[str | None, str]:
    """The name of the parser of ``kind`` that the checkpoint gets, and why."""
    found, why = choose_parser(registry(), kind, Config(), checkpoint)
    return found.spec.name if found else None, why


@pytest.mark.parametrize("path", CHECKPOINTS, ids=lambda path: path.stem)
def test_the_right_parsers_are_chosen(path: Path) -> None:
    wanted, checkpoint = read(path)
    for kind, names in KINDS.items():
        name, why = chosen(kind, checkpoint)
        if names in wanted:
            assert name == wanted[names], why


@pytest.mark.parametrize("kind", KINDS)
def test_every_parser_has_a_checkpoint_or_is_only_a_name(kind: str) -> None:
    found = {read(path)[0].get(KINDS[kind]) for path in CHECKPOINTS}
    hook = specs.llmk_reasoning_parsers if kind == "reasoning" else specs.llmk_tool_parsers
    for spec in hook():
        only_a_name = getattr(spec.claims, "func", None) is only_by_name
        assert spec.name in found or only_a_name, spec.name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}<|im_start|>assistant\n",
        "{{ bos_token }}{% for m in messages %}[INST] {{ m.content }} [/INST]{% endfor %}",
        "<|user|>{{ messages[0].content }}<|assistant|>",
    ],
)
def test_an_unknown_dialect_gets_no_parser(kind: str, template: str) -> None:
    name, why = chosen(kind, Checkpoint(path=Path(), config={"model_type": "unheard_of"}, chat_template=template))
    assert name is None
    assert why.startswith(f"no {kind} parser claims this checkpoint's dialect (installed: ")


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.id)
def test_no_template_is_a_reason(spec: ParserSpec) -> None:
    verdict = spec.claims(ParserQuery(checkpoint=Checkpoint(path=Path(), config={})))
    assert not verdict
    assert verdict.reasons[0].found == "no chat template"


def test_specs_are_cheap_to_list() -> None:
    heavy = ("torch", "pydantic", "llmk_parsers.machine")
    code = f"import sys, llmk_parsers.specs; print([name for name in {heavy} if name in sys.modules])"
    listed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert listed.stdout.strip() == "[]"

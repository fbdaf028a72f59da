from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llmk.api import Checkpoint, ParserQuery, ParserSpec
from llmk.config import Config
from llmk.config.schema import PluginsSection
from llmk.kernel.registry import Registry
from llmk.planning.choices.parsers import choose_parser
from llmk_parsers import specs

SPECS = [*specs.llmk_reasoning_parsers(), *specs.llmk_tool_parsers()]

CHECKPOINTS = sorted((Path(__file__).parent / "checkpoints").glob("*.jinja"))
"""Chat templates, shortened to what shows the dialect. The first line of each is a comment with the names of the
parsers that must be chosen (``reasoning``, ``tools``) and the checkpoint's ``config``."""


def read(path: Path) -> tuple[dict[str, Any], Checkpoint]:
    head, _, template = path.read_text().partition("\n")
    wanted = json.loads(head.removeprefix("{#").removesuffix("#}"))
    return wanted, Checkpoint(path=Path(), config=wanted.get("config", {}), chat_template=template)


@pytest.mark.parametrize("path", CHECKPOINTS, ids=lambda path: path.stem)
def test_the_right_parsers_are_chosen(path: Path) -> None:
    wanted, checkpoint = read(path)
    registry, config = Registry.discover(PluginsSection()), Config()
    for kind, names in (("reasoning", "reasoning"), ("tool", "tools")):
        chosen, why = choose_parser(registry, kind, config, checkpoint)
        if names in wanted:
            assert (chosen.spec.name if chosen else None) == wanted[names], why


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

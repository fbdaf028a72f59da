"""The engine makes rows of tables of rotations before its steps read them: what is answered with each row made on its
own, and NaN in all others, is what is answered with whole tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from drafters import draft
from headed import HEADED, LAYERS, with_heads
from spread import TIGHT, answers, check, make, tight

from llmk import LLM
from llmk.engine.execution import build
from llmk.nn.position_table import PositionTable
from llmk_testing.checkpoints import write_checkpoint

ROTATED = ["llama-biases", "gemma3", "deepseek-v2-biases", "qwen3-next-one-kv-head"]


@contextmanager
def rows_alone() -> Iterator[None]:
    """Within, tables are filled a row at a time."""
    made: list[PositionTable] = []
    good = PositionTable.__init__

    def poisoned(table: PositionTable, *args: Any) -> None:
        good(table, *args)
        table.tensor[table.filled :] = float("nan")
        made.append(table)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "_POSITION_ROWS", 1)
        patch.setattr(PositionTable, "__init__", poisoned)
        yield
    assert made
    assert all(table.filled > 1 for table in made)


@pytest.mark.slow
@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("family", ROTATED)
def test_answers_are_those_of_whole_tables(family: str, graphs: bool, tmp_path: Path) -> None:
    folder, settings = make(tmp_path, family), {**tight(family), "engine.graphs": graphs}
    with LLM(str(folder), **settings) as llm:
        expected = answers(llm)
    with rows_alone(), LLM(str(folder), **settings) as llm:
        check(answers(llm), expected)


@pytest.mark.slow
def test_heads_draft_by_rows_that_were_made(tmp_path: Path) -> None:
    whole = write_checkpoint(tmp_path / "whole", "glm4_moe", **HEADED["glm4_moe"] | {"num_hidden_layers": LAYERS + 1})
    folder = with_heads(whole, tmp_path / "headed", 1)
    drafts = []
    for made in (nullcontext, rows_alone):
        with made(), LLM(str(folder), **TIGHT, speculation={"use": "mtp", "num_drafts": 4}) as llm:
            draft(llm, 3, None)
            found = answers(llm)
            drafts.append((found, llm.stats.drafted, llm.stats.accepted))
    check(drafts[0][0], drafts[1][0])
    assert drafts[0][1:] == drafts[1][1:]

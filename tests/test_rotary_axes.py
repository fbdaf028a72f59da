"""A model whose rotary positions have several axes, through the whole engine."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from spread import make, tight

from llmk import LLM, SamplingParams
from llmk.tree import Rope


def test_texts_have_the_same_position_on_each_axis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make(tmp_path, "qwen3-tied-odd-vocabulary")
    rng = random.Random(1)
    prompts = [[rng.randrange(3, 380) for _ in range(length)] for length in (1, 30, 13)]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)

    def tokens() -> tuple[list[list[int]], Any]:
        with LLM(str(folder), **tight(folder.name)) as llm:
            found = [output.outputs[0].token_ids for output in llm.generate(prompts, params, use_tqdm=False)]
            return found, {facts.site: facts.facts for facts in llm.boot.facts.ops}["attention.whole"]

    expected, facts = tokens()
    assert "rotary_sections" not in facts
    with_settings = Rope.with_settings.__func__  # type: ignore[attr-defined]

    def with_axes(cls: type[Rope], *args: Any) -> Rope:
        made = with_settings(cls, *args)
        return Rope(made.dim, made.positions, made.settings, sections=(4, 6, 6), interleaved=True)

    monkeypatch.setattr(Rope, "with_settings", classmethod(with_axes))
    found, facts = tokens()
    assert facts["rotary_sections"] == (4, 6, 6)
    assert found == expected

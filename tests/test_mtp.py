"""Drafts by the model's own heads: answers are those without, and the heads' caches hold what they computed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from drafters import draft
from headed import HEADED, LAYERS, that_know, with_heads
from spread import TIGHT, answers, check
from threaded_ranks import ThreadedRanks

from llmk import LLM, SamplingParams
from llmk.api import ConfigError, SelectionError
from llmk.config import load
from llmk.engine import launch
from llmk.planning.boot import boot
from llmk.planning.choices.speculation import render_speculation
from llmk_testing.checkpoints import write_checkpoint
from llmk_testing.model import ModelHarness

MTP = {"use": "mtp", "num_drafts": 4}
GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)


def made(folder: Path, kind: str, count: int = 1) -> Path:
    """A tiny checkpoint with so many random heads."""
    whole = write_checkpoint(folder / kind, kind, **HEADED[kind] | {"num_hidden_layers": LAYERS + count})
    return with_heads(whole, folder / f"{kind}-{count}", count)


@pytest.fixture(scope="module", params=[("deepseek_v3", 1), ("glm4_moe", 1), ("glm4_moe", 2)], ids=str)
def headed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A checkpoint with random heads, and what it answers without them."""
    folder = made(tmp_path_factory.mktemp("checkpoint"), *request.param)
    with LLM(str(folder), **TIGHT) as llm:
        return folder, answers(llm)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("graphs", [True, False])
def test_answers_are_those_without_drafts(headed: tuple[Path, Any], depth: int, graphs: bool) -> None:
    folder, expected = headed
    with LLM(str(folder), **TIGHT, speculation=MTP, engine={"steps_in_flight": depth, "graphs": graphs}) as llm:
        draft(llm, 3, None)
        check(answers(llm), expected)
        assert sum(llm.stats.drafted) > 50


@pytest.mark.slow
@pytest.mark.parametrize("kind", HEADED)
@pytest.mark.parametrize("count", [1, 2])
def test_heads_that_know_are_always_right(kind: str, count: int, tmp_path: Path) -> None:
    folder = that_know(made(tmp_path, kind, count), tmp_path / "knowing")
    prompts = [random.Random(seed).choices(range(3, 380), k=length) for seed, length in enumerate((1, 40, 17))]
    found = []
    for use in ("", "mtp"):
        with LLM(str(folder), **TIGHT, speculation={**MTP, "use": use}) as llm:
            if use:
                draft(llm, 4, None)
            found.append([each.outputs[0].token_ids for each in llm.generate(prompts, GREEDY, use_tqdm=False)])
            drafted, accepted = sum(llm.stats.drafted), sum(llm.stats.accepted)
    assert found[0] == found[1]
    assert accepted == drafted > 30


@pytest.mark.slow
@pytest.mark.parametrize("kind", HEADED)
def test_drafts_are_what_the_head_computes_of_all_tokens_at_once(kind: str, tmp_path: Path) -> None:
    """Whatever prompts were chunked to, and whoever was preempted or ran beside."""
    folder = made(tmp_path, kind)
    seen: list[tuple[list[int], list[int]]] = []
    with LLM(str(folder), **TIGHT, speculation=MTP) as llm:
        draft(llm, 4, None)
        batch: Any = llm.core.runner.batch
        propose = batch.propose

        def watched(known: Any, slots: Any, works: Any) -> Any:
            drafts = propose(known, slots, works)
            for row, work in enumerate(works):
                tokens = batch.tokens[slots[row], : known[row]].tolist()
                seen.append((tokens, drafts[row, : work.num_drafts].tolist()))
            return drafts

        batch.propose = watched
        prompts = [random.Random(seed).choices(range(3, 380), k=length) for seed, length in enumerate((2, 40, 17, 33))]
        prompts.append([*prompts[1][:22], *prompts[2]])
        llm.generate([*prompts, *prompts], GREEDY, use_tqdm=False)
        assert llm.stats.preemptions
    assert len(seen) > 50
    harness = ModelHarness.of(folder, {"speculation.use": "mtp", "cache.block_size": 8}, num_blocks=4096)
    for tokens, drafts in seen:
        assert drafts == expected_drafts(harness, tokens, len(drafts)), tokens


@torch.inference_mode()
def expected_drafts(harness: ModelHarness, tokens: list[int], most: int) -> list[int]:
    """What the head predicts behind ``tokens``, each time computed of all of them."""
    model: Any = harness.model
    forward, states, drafts = model.forward, list[Any](), list[int]()
    model.forward = lambda ids, context: states.append((hidden := forward(ids, context), context)) or hidden
    harness.step([(object(), tokens[:-1])])
    hidden, context = states.pop()
    for _ in range(most):
        found = model.ahead[0](hidden, torch.tensor([*tokens[1:], *drafts]), context)
        drafts.append(int(model.logits(found[-1:]).argmax()))
        harness.step([(object(), [*tokens, *drafts[:-1]])])
        _, context = states.pop()
        hidden = torch.cat((hidden, found[-1:]))
    model.forward = forward
    return drafts


@pytest.mark.slow
def test_given_embeddings_and_cached_prefixes_change_no_answer(tmp_path: Path) -> None:
    """Of the former, a head gets some other token; the latter may have gone on with another."""
    folder = made(tmp_path, "glm4_moe")
    given = torch.randn(9, 64, generator=torch.Generator().manual_seed(1))
    prompt = random.Random(5).choices(range(3, 380), k=16)
    prompts: list[Any] = [given, prompt, [*prompt, 7, 8], [*prompt, 9]]
    found = []
    for use in ("", "mtp"):
        with LLM(str(folder), **TIGHT, speculation={**MTP, "use": use}) as llm:
            if use:
                draft(llm, 3, None)
            answered = [llm.generate([each], GREEDY, use_tqdm=False)[0] for each in prompts]
            found.append([each.outputs[0].token_ids for each in answered])
            assert answered[-1].num_cached_tokens == len(prompt)
    assert found[0] == found[1]


@pytest.mark.slow
def test_ranks_draft_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made(tmp_path, "glm4_moe")
    with LLM(str(folder), **TIGHT) as llm:
        expected = answers(llm)
    monkeypatch.setattr(launch, "start_executor", ThreadedRanks.start)
    with LLM(str(folder), **TIGHT, speculation=MTP, parallel={"tensor": 2}) as llm:
        draft(llm, 3, None)
        check(answers(llm), expected)
        assert sum(llm.stats.drafted) > 50


def explained(folder: Path, **options: Any) -> Any:
    return boot(load({"model.path": str(folder), "speculation.use": "mtp", **options}))


def test_the_plan_says_who_drafts(tmp_path: Path) -> None:
    line = render_speculation(explained(made(tmp_path, "glm4_moe")))
    assert line.endswith("by speculators.mtp with the model's own heads, inside of steps")


@pytest.mark.parametrize(
    ("kind", "message"),
    [("glm4_moe", r"predict further tokens: glm4_moe has none"), ("llama", r"models\.dense serves none")],
)
def test_a_model_without_heads_is_refused(kind: str, message: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / kind, kind, **HEADED.get(kind, {}), num_nextn_predict_layers=0)
    with pytest.raises(SelectionError, match=message) as caught:
        explained(folder)
    assert "suffix_tree" in str(caught.value.hint)


def test_stages_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "start_executor", ThreadedRanks.start)
    with pytest.raises(ConfigError, match=r"set parallel\.pipeline = 1|stages"):
        LLM(str(made(tmp_path, "glm4_moe")), speculation=MTP, parallel={"pipeline": 2})

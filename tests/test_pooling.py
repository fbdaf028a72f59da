"""Embeddings, scores and labels against transformers, on tiny random checkpoints."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from pooled_checkpoints import hidden_states, logits, write_classifier, write_embedder

from llmk import LLM, SamplingParams
from llmk.api import CheckpointError, ConfigError, RequestError, UnknownArchitecture
from llmk_testing.checkpoints import write_checkpoint

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 24, "head_dim": 32},
    "qwen2": {"num_key_value_heads": 4},
    "qwen3": {"head_dim": 32, "tie_word_embeddings": True},
    "gemma2": {"head_dim": 16, "sliding_window": 24, "query_pre_attn_scalar": 24},
    "gemma3_text": {"head_dim": 16, "sliding_window": 24, "sliding_window_pattern": 2, "query_pre_attn_scalar": 24},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
}
ENGINES: dict[str, dict[str, Any]] = {
    "plain": {"cache": {"prefix_caching": False}},
    "prefix-cache": {"cache": {"prefix_caching": True, "block_size": 4}},
    "chunked": {"scheduler": {"max_num_batched_tokens": 16, "max_num_seqs": 8}, "cache": {"block_size": 4}},
    "preempting": {
        "max_model_len": 128,
        "cache": {"block_size": 4, "num_blocks": 70},
        "scheduler": {"max_num_batched_tokens": 24, "max_num_seqs": 8},
    },
}


@cache
def prompts() -> list[list[int]]:
    """Prompts of many lengths, some of which start alike."""
    draw = random.Random(0)
    shared = [draw.randrange(3, 250) for _ in range(40)]
    own = [[draw.randrange(3, 250) for _ in range(length)] for length in (1, 2, 17, 33, 90)]
    return [*own, shared[:32], shared, [*shared, 7], [*shared[:20], 9, 9]]


def close(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(torch.as_tensor(found), torch.as_tensor(wanted), rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", ["lasttoken", "mean_tokens"])
def test_embeddings_equal_transformers(method: str, engine: str, tmp_path: Path) -> None:
    folder = write_embedder(tmp_path, "qwen3", method, **FAMILIES["qwen3"])
    with LLM(str(folder), **ENGINES[engine]) as llm:
        found = llm.embed(prompts(), use_tqdm=False)
        again = llm.embed(prompts(), use_tqdm=False, normalize=False, dimensions=10)
    states = hidden_states(folder, prompts())
    rows = [each.mean(0) if method == "mean_tokens" else each[-1] for each in states]
    for output, short, row in zip(found, again, rows, strict=True):
        close(output.embedding, torch.nn.functional.normalize(row, dim=0))
        close(short.embedding, row[:10])
    cached = [output.num_cached_tokens for output in again]
    assert any(cached) == (method == "lasttoken" and engine != "plain")


@pytest.mark.parametrize("family", FAMILIES)
def test_families_embed_as_transformers(family: str, tmp_path: Path) -> None:
    folder = write_embedder(tmp_path, family, **FAMILIES[family])
    with LLM(str(folder), scheduler={"max_num_batched_tokens": 32, "max_num_seqs": 8}) as llm:
        found = llm.embed(prompts(), use_tqdm=False, normalize=False)
        assert llm.boot.pooling is not None
        with pytest.raises(RequestError, match="computes embeddings; it has no head that generates text"):
            llm.generate("a")
    for output, states in zip(found, hidden_states(folder, prompts()), strict=True):
        close(output.embedding, states[-1])


@pytest.mark.parametrize("family", FAMILIES)
def test_families_classify_as_transformers(family: str, tmp_path: Path) -> None:
    folder = write_classifier(tmp_path, family, 3, **FAMILIES[family])
    with LLM(str(folder), scheduler={"max_num_batched_tokens": 32, "max_num_seqs": 8}) as llm:
        found = llm.classify(prompts(), use_tqdm=False)
        for call, what in ((llm.generate, "generates text"), (llm.embed, "computes no embeddings")):
            with pytest.raises(RequestError, match=f"the model classifies; it .*{what}"):
                call("a")
    wanted = logits(folder, prompts())
    for output, row in zip(found, wanted.softmax(-1), strict=True):
        close(output.probs, row)
        assert output.label == "abc"[int(row.argmax())]


def test_a_reranker_scores_pairs_as_transformers(tmp_path: Path) -> None:
    folder = write_classifier(tmp_path, "qwen3", 1, **FAMILIES["qwen3"])
    documents = ["Paris is a city.", "Bread", "Where is it?"]
    with LLM(str(folder)) as llm:
        found = llm.score("Where is Paris?", documents, use_tqdm=False)
        pairs = [llm.tokenizer.joined(*map(llm.tokenizer.encode, ("Where is Paris?", text))) for text in documents]
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    assert pairs == [tokenizer("Where is Paris?", text)["input_ids"] for text in documents]
    close(found, logits(folder, pairs).sigmoid()[:, 0])


@pytest.mark.parametrize(
    ("problem", "function"),
    [
        ({"problem_type": "multi_label_classification"}, torch.sigmoid),
        ({"problem_type": "regression"}, torch.nn.Identity()),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, torch.nn.Identity()),
    ],
)
def test_the_activation_is_the_checkpoints(problem: dict[str, Any], function: Any, tmp_path: Path) -> None:
    folder = write_classifier(tmp_path, "llama", 2, **problem)
    with LLM(str(folder)) as llm:
        close(
            [output.probs for output in llm.classify(prompts()[:3], use_tqdm=False)],
            function(logits(folder, prompts()[:3])),
        )


def test_a_generator_embeds_among_other_requests(tmp_path: Path) -> None:
    """What is generated is the same, and what is pooled too."""
    folder = write_checkpoint(tmp_path, "llama")
    params = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
    states = hidden_states(folder, prompts())
    for method, pool in (("last", lambda each: each[-1]), ("mean", lambda each: each.mean(0))):
        with LLM(str(folder), pooling=method, scheduler={"max_num_batched_tokens": 24, "max_num_seqs": 4}) as llm:
            alone = [output.outputs[0].token_ids for output in llm.generate(prompts(), params, use_tqdm=False)]
            from llmk.engine.llm import _Job, _PoolingJob
            from llmk.engine.text.pooler import PARAMS
            from llmk.engine.wire.request import RequestContext

            jobs: list[Any] = []
            for number, prompt in enumerate(prompts()):
                own = RequestContext(f"pool-{number}")
                pooled = llm._input_processor.sequences(prompt, PARAMS, own, llm._pooler().returns(labels=False))
                jobs += [_Job(llm._input_processor, RequestContext(str(number)), prompt, params), _PoolingJob(pooled)]
            llm._run(jobs, use_tqdm=False)
        assert [job.output.outputs[0].token_ids for job in jobs[::2]] == alone
        for job, row in zip(jobs[1::2], map(pool, states), strict=True):
            close(job.row, row)


def test_prompts_of_the_checkpoint_go_before_texts(tmp_path: Path) -> None:
    named = {"prompts": {"query": "Find: ", "document": ""}, "default_prompt_name": "query"}
    folder = write_embedder(tmp_path, "qwen3", prompts=named, **FAMILIES["qwen3"])
    with LLM(str(folder)) as llm:
        default, plain, whole = (
            llm.embed(text, use_tqdm=False, prompt_name=name)[0].prompt_token_ids
            for text, name in (("bread", None), ("bread", "document"), ("Find: bread", ""))
        )
        assert default == whole == llm.tokenizer.encode("Find: bread")
        assert plain == llm.tokenizer.encode("bread")
        first, second = llm.embed("bread", use_tqdm=False)[0], llm.embed("water", use_tqdm=False, prompt_name="")[0]
        cosine = sum(a * b for a, b in zip(first.embedding, second.embedding, strict=True))
        close(llm.score("bread", ["water"], use_tqdm=False), [cosine])
        with pytest.raises(RequestError, match=r"has no prompt 'nix'.*query, document"):
            llm.embed("a", prompt_name="nix")
        with pytest.raises(RequestError, match="from 1 to 64"):
            llm.embed("a", dimensions=65)
        with pytest.raises(RequestError, match="2 queries and 3 documents"):
            llm.score(["a", "b"], ["a", "b", "c"])


def test_encoders_and_odd_files_are_refused_by_name(tmp_path: Path) -> None:
    folder = write_embedder(tmp_path, "qwen3", **FAMILIES["qwen3"])
    config, pooling, modules = (folder / name for name in ("config.json", "1_Pooling/config.json", "modules.json"))
    values = json.loads(config.read_text())
    for change, error, message in (
        ({"architectures": ["BertModel"], "model_type": "bert"}, UnknownArchitecture, "BertModel is an encoder"),
        ({"is_causal": False}, UnknownArchitecture, "is_causal in config.json"),
        ({"architectures": ["FooModel"]}, UnknownArchitecture, "pooled outputs of Foo"),
    ):
        config.write_text(json.dumps(values | change))
        with pytest.raises(error, match=message):
            LLM(str(folder))
    config.write_text(json.dumps(values))
    with pytest.raises(ConfigError, match="no head to generate text"):
        LLM(str(folder), pooling="none")
    pooling.write_text(json.dumps({"pooling_mode_cls_token": True}))
    with pytest.raises(CheckpointError, match="Pooling by cls_token"):
        LLM(str(folder))
    modules.write_text(json.dumps([{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}]))
    with pytest.raises(CheckpointError, match="has the module Dense"):
        LLM(str(folder))


@pytest.mark.slow
@pytest.mark.parametrize("spread", [{"tensor": 2}, {"pipeline": 2}], ids=str)
def test_pooling_over_several_processes(spread: dict[str, int], tmp_path: Path) -> None:
    classifier = write_classifier(tmp_path / "classifier", "qwen3", 1, **FAMILIES["qwen3"])
    embedder = write_embedder(tmp_path / "embedder", "qwen3", "mean_tokens", **FAMILIES["qwen3"])
    how: dict[str, Any] = {"parallel": spread, "platform": {"threads": 1}, "cache": {"memory_gib": 0.1}}
    how["scheduler"] = {"max_num_batched_tokens": 32, "max_num_seqs": 4}
    with LLM(str(classifier), **how) as llm:
        found = [output.probs for output in llm.classify(prompts(), use_tqdm=False)]
    close(found, logits(classifier, prompts()).sigmoid())
    with LLM(str(embedder), **how) as llm:
        vectors = llm.embed(prompts(), use_tqdm=False, normalize=False)
    for output, states in zip(vectors, hidden_states(embedder, prompts()), strict=True):
        close(output.embedding, states.mean(0))

"""``--engine.deterministic`` through the whole engine: a request's tokens and log-probabilities are equal bit for bit,
whatever else runs, however prompts are cut, cached or computed again, and in whichever slot.

Seeded random traffic on tiny random checkpoints, with prompts of up to several blocks of keys.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from equal_tokens import KINDS

from llmk.config import load
from llmk.engine.launch import build_core
from llmk.engine.wire.request import EngineRequest, EngineStats, TokenLogprobs
from llmk.engine.wire.sampling_params import SamplingParams
from llmk.planning.boot import boot
from llmk_testing.checkpoints import write_checkpoint

EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48, "head_dim": 32}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"tie_word_embeddings": True, "attention_bias": True}),
    "mixtral": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3-moe": ("qwen3_moe", {**EXPERTS, "mlp_only_layers": [1], "norm_topk_prob": True}),
    **{kind: KINDS[kind] for kind in ("latent", "recurrent", "hybrid")},
    "gemma2": ("gemma2", {"head_dim": 16, "sliding_window": 150, "query_pre_attn_scalar": 24}),
}
MAX_LEN, VOCAB = 448, 384
PARAMS = (
    SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=3),
    SamplingParams(temperature=0.9, seed=5, max_tokens=40, ignore_eos=True, logprobs=1),
    SamplingParams(temperature=1.2, top_k=20, top_p=0.8, seed=6, max_tokens=30, ignore_eos=True, logprobs=0),
    SamplingParams(temperature=0, max_tokens=9, prompt_logprobs=2, logprobs=2, frequency_penalty=0.5, ignore_eos=True),
    SamplingParams(
        temperature=0.7, min_p=0.1, presence_penalty=1.0, seed=7, max_tokens=25, ignore_eos=True, logprobs=4
    ),
)
SMALL: dict[str, Any] = {"cache.block_size": 16, "cache.state_block_size": 16}
"""The block size is that of :func:`alone`, because a kernel may be chosen for it."""
TRAFFIC: dict[str, dict[str, Any]] = {
    "together": {"cache.prefix_caching": False},
    "short steps": {**SMALL, "scheduler.max_num_batched_tokens": 23, "scheduler.max_num_seqs": 5},
    "few blocks": {**SMALL, "scheduler.max_num_batched_tokens": 190},
}
FEW = 29
BLOCKS = {"gemma2": 60, "recurrent": 24, "hybrid": 60}
"""Too few for all requests at once: of those with windows as well, more are needed for one. Others have ``FEW``. What
gives blocks back is hardly ever short of them."""


@dataclass(slots=True)
class Answer:
    """What came of one request."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)


def requests() -> list[EngineRequest]:
    """Prompts of awkward lengths, some twice, some with a prefix in common."""
    rng = random.Random(3)
    draw = [[rng.randrange(3, VOCAB) for _ in range(n)] for n in (1, 5, 17, 64, 130, 257, 300, 390)]
    prompts = [*draw, draw[4], draw[5][:200] + draw[2], draw[6][:128], draw[6][:290] + draw[1]]
    return [
        EngineRequest(id=str(number), prompt_token_ids=prompt, params=params, seed=params.seed or 0)
        for number, (prompt, params) in enumerate(zip(prompts, PARAMS * 3, strict=False))
    ]


def serve(
    folder: Path, waves: Sequence[Sequence[EngineRequest]], **settings: Any
) -> tuple[dict[str, Answer], EngineStats]:
    """Runs requests to their ends on one engine, each wave after a few steps of the one before."""
    rng = random.Random(len(waves))
    options = {"model.path": str(folder), "model.max_model_len": MAX_LEN, **settings}
    core, _ = build_core(boot(load(options, environ={})))
    answers: dict[str, Answer] = {}
    coming = list(waves)
    while coming or core.has_work:
        for request in coming.pop(0) if coming else ():
            answers[request.id] = Answer()
            core.add(request)
        for _ in range(rng.randrange(1, 6) if coming else 1):
            for output in core.step().outputs:
                assert not output.error, output.error
                answer = answers[output.id]
                answer.token_ids += output.token_ids
                answer.logprobs += output.logprobs
                answer.prompt_logprobs += output.prompt_logprobs
    return answers, core.stats


@pytest.fixture(autouse=True)
def restored_threads() -> Iterator[None]:
    """Engines set the process's compute threads; what they were is restored."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=MODELS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model_type, overrides = MODELS[request.param]
    folder = tmp_path_factory.mktemp("checkpoint") / request.param
    return write_checkpoint(folder, model_type, max_position_embeddings=MAX_LEN, **overrides)


def alone(folder: Path, **settings: Any) -> dict[str, Answer]:
    """Every request with the engine to itself, its prompt whole and nothing cached."""
    answers: dict[str, Answer] = {}
    for request in requests():
        answers |= serve(folder, [[request]], **{"cache.prefix_caching": False, **settings})[0]
    return answers


def shuffled(seed: int) -> list[list[EngineRequest]]:
    """The requests in random order, in waves of random size."""
    rng = random.Random(seed)
    left = rng.sample(requests(), len(requests()))
    waves = []
    while left:
        count = rng.randrange(1, 6)
        waves.append(left[:count])
        left = left[count:]
    return waves


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_answers_do_not_depend_on_the_batch(checkpoint: Path, dtype: str) -> None:
    settings = {"model.dtype": dtype, "engine.deterministic": True, "platform.threads": 1}
    expected = alone(checkpoint, **settings)
    assert all(len(answer.logprobs) == len(answer.token_ids) > 8 for answer in expected.values())
    assert [len(expected[str(n)].prompt_logprobs) for n in (3, 8)] == [63, 129]
    preemptions = hits = 0
    for seed, (name, traffic) in enumerate(TRAFFIC.items()):
        limits = {"cache.num_blocks": BLOCKS.get(checkpoint.name, FEW)} if name == "few blocks" else {}
        answers, stats = serve(checkpoint, shuffled(seed), **settings, **traffic, **limits)
        assert answers == expected
        preemptions += stats.preemptions
        hits += stats.prefix_hit_tokens
    assert preemptions > 0 or checkpoint.name in BLOCKS
    assert hits > 0


@pytest.mark.slow
def test_nor_do_they_with_two_threads(checkpoint: Path) -> None:
    settings = {"model.dtype": "float32", "engine.deterministic": True, "platform.threads": 2}
    answers, _ = serve(checkpoint, shuffled(3), **settings, **TRAFFIC["short steps"])
    some = [request for request in requests() if int(request.id) % 3 == 0]
    for request in some:
        (expected,) = serve(checkpoint, [[request]], **settings)[0].values()
        assert answers[request.id] == expected


@pytest.mark.slow
def test_without_it_they_do(checkpoint: Path) -> None:
    """In float32, if only by rounding: the comparison tells."""
    expected = alone(checkpoint, **{"model.dtype": "float32"})
    answers, _ = serve(checkpoint, shuffled(1), **{"model.dtype": "float32"}, **TRAFFIC["short steps"])
    assert answers != expected


def test_every_kernel_of_the_plan_declares_it(checkpoint: Path) -> None:
    settings = {"model.path": str(checkpoint), "engine.deterministic": True}
    found = boot(load(settings, environ={}))
    chosen = {piece.id for choice in found.plan.all_choices() if choice.query for piece in choice.pieces}
    kernels = [kernel.spec for kind in ("attention", "linear", "moe", "op") for kernel in found.registry.kernels(kind)]
    assert chosen
    assert chosen <= {spec.id for spec in kernels if spec.deterministic}
    assert all(len(choice.pieces) == 1 for choice in found.plan.all_choices())

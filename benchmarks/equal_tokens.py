"""Whether an engine's features change what a model says: tokens with each feature on, against all of them off.

    python benchmarks/equal_tokens.py                            # every kind of model, as a markdown table
    python benchmarks/equal_tokens.py --kinds hybrid --features all

Models are tiny and random, in float32, one for each kind of cache or layer that an engine must know how to treat. Each
run serves greedy and seeded requests, alone and at once, short and long, with shared prefixes and repeated. A row says
how many tokens agree, the largest distance of a log-probability, and that the feature was at work.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from llmk import LLM, SamplingParams
from llmk.api import NotEnoughMemory, SchedulingPolicy, Ticket
from llmk.engine.processes.ranks.multiprocess_executor import MultiProcessExecutor
from llmk.engine.scheduling.guarded_policy import GuardedPolicy
from llmk.engine.wire.request import EngineStats
from llmk_testing.checkpoints import write_checkpoint

EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "norm_topk_prob": True}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("qwen3", {"head_dim": 32}),
    "experts": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "fine experts": ("qwen3_moe", {**EXPERTS, "head_dim": 32}),
    "latent": (
        "deepseek_v2",
        {
            "num_key_value_heads": 4,
            "q_lora_rank": 24,
            "kv_lora_rank": 32,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8,
            "v_head_dim": 24,
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "n_group": 4,
            "topk_group": 2,
            "topk_method": "group_limited_greedy",
            "moe_intermediate_size": 48,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
        },
    ),
    "recurrent": ("mamba2", {"num_heads": 8, "head_dim": 16, "n_groups": 4, "state_size": 16}),
    "hybrid": (
        "qwen3_next",
        {
            **EXPERTS,
            "head_dim": 32,
            "num_hidden_layers": 4,
            "linear_num_value_heads": 8,
            "linear_num_key_heads": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "shared_expert_intermediate_size": 40,
        },
    ),
    "windows": ("gemma2", {"head_dim": 16, "sliding_window": 24, "query_pre_attn_scalar": 24}),
}
"""By kind of model: a transformers type, and its config."""


@dataclass(frozen=True, slots=True)
class Run:
    """What became of the requests: each one's tokens and their log-probabilities; and in how many processes, with how
    many steps in flight at most."""

    answers: list[tuple[list[int], list[float]]]
    stats: EngineStats
    num_processes: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class Feature:
    """Settings that turn a feature on, and how to tell from a run, and the plain one, that it was at work."""

    settings: Mapping[str, Any]
    policy: Callable[[], SchedulingPolicy] | None = None
    worked: Callable[[Run, Run], bool] = lambda run, off: True


OFF = {
    "dtype": "float32",
    "max_model_len": 160,
    "scheduler.max_num_seqs": 16,
    "cache.block_size": 4,
    "cache.state_block_size": 8,
    "cache.prefix_caching": False,
    "scheduler.chunked_prefill": False,
}
_CACHED = {"cache.prefix_caching": True}
_CHUNKED = {"scheduler.chunked_prefill": True, "scheduler.max_num_batched_tokens": 19}
_TIGHT = {**_CACHED, **_CHUNKED, "scheduler.max_num_seqs": 3}


class Displacing(SchedulingPolicy):
    """Puts back a running request for one that waits, now and then: what keeps little of a text is never short of
    blocks, and so would never be preempted."""

    def __init__(self) -> None:
        self._random = Random(7)

    def order(self, requests: Sequence[Ticket]) -> Iterable[Ticket]:
        """As they arrived."""
        return requests

    def victim(self, running: Sequence[Ticket]) -> Ticket:
        """The last."""
        return running[-1]

    def displaced(self, running: Sequence[Ticket], newcomer: Ticket) -> Ticket | None:
        """Any, or none."""
        return self._random.choice([*running, *[None] * 4])


FEATURES = {
    "prefix cache": Feature(_CACHED, None, lambda run, off: run.stats.prefix_hit_tokens > 0),
    "chunked prefill": Feature(_CHUNKED, None, lambda run, off: run.stats.steps > off.stats.steps),
    "preemption": Feature(_TIGHT, Displacing, lambda run, off: run.stats.preemptions > 0),
    "asynchronous stepping": Feature({"engine.steps_in_flight": 2}, None, lambda run, off: run.in_flight == 2),
}
"""Those of one process, which ``"all"`` turns on at once."""
SPREAD = {
    f"{way} parallel 2": Feature({f"parallel.{way}": 2}, None, lambda run, off: run.num_processes == 2)
    for way in ("tensor", "pipeline")
}
"""Those that start processes."""


def requests() -> list[tuple[list[int], SamplingParams]]:
    """Prompts of awkward lengths, two of them twice and two with a common prefix; every other one is sampled."""
    random = Random(3)
    drawn = [[random.randrange(3, 380) for _ in range(length)] for length in (1, 7, 16, 33, 70, 91)]
    prompts = [*drawn, drawn[4], drawn[5], drawn[5][:48] + drawn[1], drawn[3] + drawn[2]]
    return [
        (prompt, SamplingParams(temperature=i % 2 * 0.8, seed=i, max_tokens=24, ignore_eos=True, logprobs=0))
        for i, prompt in enumerate(prompts)
    ]


def serve(folder: Path, settings: Mapping[str, Any], policy: SchedulingPolicy | None = None) -> Run:
    """What the requests come to, all at once and then one by one."""
    prompts, params = zip(*requests(), strict=True)
    with LLM(str(folder), **{**OFF, **settings}) as llm:
        if policy is not None:
            llm.core.scheduler.live.policy = GuardedPolicy(policy)
        outputs = llm.generate(list(prompts), list(params), use_tqdm=False)
        for prompt, one in zip(prompts, params, strict=True):
            outputs += llm.generate([prompt], one, use_tqdm=False)
        stats, executor, depth = llm.stats, llm.core.runner, llm.core.depth
        num_processes = len(executor.pids) if isinstance(executor, MultiProcessExecutor) else 1
    completions = [output.outputs[0] for output in outputs]
    answers = [(one.token_ids, [entry.logprob for entry in one.logprobs]) for one in completions]
    return Run(answers, stats, num_processes, depth)


@cache
def plain(folder: Path) -> Run:
    """With every feature off."""
    return serve(folder, {})


def tight(folder: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """``settings`` with a cache that holds little more than one request."""
    for num_blocks in range(1, 4096):
        try:
            LLM(str(folder), **{**OFF, **settings, "cache.num_blocks": num_blocks}).close()
        except NotEnoughMemory:
            continue
        return {**settings, "cache.num_blocks": num_blocks + max(8, num_blocks // 4)}
    raise RuntimeError("no cache is large enough")


@dataclass(frozen=True, slots=True)
class Comparison:
    """How a run compares with the plain one."""

    equal: int
    total: int
    distance: float
    """Largest absolute difference of log-probabilities of equal tokens."""
    worked: bool


def compare(folder: Path, name: str) -> Comparison:
    """Runs with the feature ``name`` (``"all"``: every one of one process at once) and compares."""
    off = plain(folder)
    chosen = FEATURES if name == "all" else {name: (FEATURES | SPREAD)[name]}
    settings: dict[str, Any] = {}
    for feature in chosen.values():
        settings |= feature.settings
    if "preemption" in chosen:
        settings = tight(folder, settings)
    policy = next((feature.policy() for feature in chosen.values() if feature.policy), None)
    run = serve(folder, settings, policy)
    equal = total = 0
    distance = 0.0
    for (tokens, logprobs), (right, right_logprobs) in zip(run.answers, off.answers, strict=True):
        total += len(right)
        for token, logprob, right_token, right_logprob in zip(tokens, logprobs, right, right_logprobs, strict=True):
            if token != right_token:
                break
            equal += 1
            distance = max(distance, abs(logprob - right_logprob))
    return Comparison(equal, total, distance, all(feature.worked(run, off) for feature in chosen.values()))


def checkpoint(kind: str, folder: Path) -> Path:
    """Makes the checkpoint of a kind of model."""
    model_type, overrides = KINDS[kind]
    return write_checkpoint(folder / kind.replace(" ", "-"), model_type, **overrides)


def rows(kinds: list[str], features: list[str], folder: Path) -> Iterator[list[str]]:
    """The table, row by row."""
    for kind in kinds:
        path = checkpoint(kind, folder)
        for name in features:
            result = compare(path, name)
            verdict = "equal" if result.equal == result.total else "DIFFERENT"
            worked = "yes" if result.worked else "NO"
            yield [kind, name, verdict, f"{result.equal}/{result.total}", f"{result.distance:.1e}", worked]


def main() -> int:
    """Prints the table; 1 where something differs or was not at work."""
    parser = argparse.ArgumentParser(description="Tokens with an engine's features on, against all off.")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=KINDS)
    features = [*FEATURES, "all", *SPREAD]
    parser.add_argument("--features", nargs="*", default=features, choices=features)
    args = parser.parse_args()
    print("| model | feature | tokens | equal | largest distance of a logprob | at work |")
    print("| --- | --- | --- | --- | --- | --- |")
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for row in rows(args.kinds, args.features, Path(folder)):
            print("| " + " | ".join(row) + " |", flush=True)
            failed |= "DIFFERENT" in row or "NO" in row
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

"""What the suite of executors serves: small random checkpoints, prompts, and what the engine's own executor makes of
them."""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from weakref import finalize

import torch
from torch import Tensor

from llmk.api import ExecutorSpec
from llmk.config import load
from llmk.engine.llm import LLM
from llmk.engine.wire.sampling_params import SamplingParams
from llmk.planning.boot import boot
from llmk_testing.bench import Bench
from llmk_testing.case import Skip
from llmk_testing.checkpoints import write_checkpoint

_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "qwen3": ("qwen3", {"head_dim": 32, "num_attention_heads": 6, "num_key_value_heads": 1}),
    "mistral with a window": (
        "mistral",
        {"sliding_window": 24, "head_dim": 32, "num_attention_heads": 6, "num_key_value_heads": 3},
    ),
    "gemma2": (
        "gemma2",
        {
            "head_dim": 16,
            "num_key_value_heads": 4,
            "sliding_window": 24,
            "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 4.0,
        },
    ),
    "mixtral": (
        "mixtral",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "num_attention_heads": 6},
    ),
}
"""Types of transformers, and values of their configs: each has other numbers of heads for queries and for keys, and
caps are so low that random weights reach them."""
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2 in several files of bfloat16": ("qwen2", {"dtype": "bfloat16", "shard_bytes": 90_000}),
    "llama in float16, with scaled rotation and tied embeddings": (
        "llama",
        {"dtype": "float16", "rope_parameters": _LLAMA3, "tie_word_embeddings": True},
    ),
    "granite with multipliers": (
        "granite",
        {"embedding_multiplier": 3.0, "attention_multiplier": 0.4, "residual_multiplier": 0.6, "logits_scaling": 2.5},
    ),
}
"""Further ones, whose checkpoints are stored otherwise."""
LONGEST = 128
NEW_TOKENS = 24
NEAR = 2e-3
"""Difference of the log-probabilities of two tokens, either of which may be chosen."""
WHOLE: dict[str, Any] = {"cache.block_size": 16, "cache.num_blocks": 64, "scheduler.max_num_seqs": 8}
CHUNKS: dict[str, Any] = {
    "cache.block_size": 4,
    "cache.num_blocks": 50,
    "scheduler.max_num_seqs": 5,
    "scheduler.max_num_batched_tokens": 24,
}


@dataclass(slots=True, weakref_slot=True)
class Served:
    """Checkpoints, and what the engine's own executor makes of them."""

    spec: ExecutorSpec
    bench: Bench
    _folders: dict[str, Path] = field(default_factory=dict)
    _expected: dict[str, list[Any]] = field(default_factory=dict)

    def folder(self, model: str) -> Path:
        """A checkpoint that the executor can run. Raises Skip where it can't."""
        if model not in self._folders:
            try:
                import transformers  # noqa: F401
            except ImportError as error:
                raise Skip("transformers writes the checkpoints, and is not installed") from error
            folder = Path(mkdtemp(prefix="llmk-"))
            finalize(self, shutil.rmtree, folder, ignore_errors=True)
            model_type, config = (MODELS | OTHERS)[model]
            self._folders[model] = write_checkpoint(folder / "model", model_type, **config)
        folder = self._folders[model]
        verdict = self.spec.supports(boot(load(self.settings(folder), environ={})).executor_query)
        if not verdict:
            raise Skip(f"{model}: {'; '.join(map(str, verdict.reasons))}")
        return folder

    def any_model(self) -> str:
        """The first model that it can run."""
        reasons = []
        for model in MODELS:
            try:
                self.folder(model)
                return model
            except Skip as reason:
                reasons.append(str(reason))
        raise Skip(reasons[0])

    def drawing(self) -> list[str]:
        """Models that it can run, whose logits are as they are computed, capped, or scaled, which greedy tokens don't
        show."""
        found = [self.any_model()]
        for model in ("gemma2", "granite with multipliers"):
            with suppress(Skip):
                self.folder(model)
                found.append(model)
        return list(dict.fromkeys(found))

    def any_folder(self) -> Path:
        """The checkpoint of the first model that it can run."""
        return self.folder(self.any_model())

    def changed(self, model: str, name: str, values: Mapping[str, tuple[Any, float]]) -> tuple[Path, set[str]]:
        """A copy of a checkpoint in which some of a tensor's elements have another value; and the names of all."""
        from safetensors.torch import load_file, save_file

        folder = self.folder(model)
        copy = folder.parent / name
        shutil.copytree(folder, copy, dirs_exist_ok=True)
        tensors = load_file(copy / "model.safetensors")
        for tensor, (where, value) in values.items():
            tensors[tensor][where] = value
        save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
        return copy, set(tensors)

    def open(self, folder: Path, engine: Mapping[str, Any], *, own: bool = False) -> LLM:
        """An engine with the executor; ``own``: with the engine's own."""
        use = {} if own else {"select.executor.use": self.spec.id}
        return LLM(**{**self.settings(folder), **engine, **use})

    def expected(self, model: str) -> list[Any]:
        """Greedy outputs of the engine's own, each prompt alone."""
        if model not in self._expected:
            with self.open(self.folder(model), WHOLE, own=True) as llm:
                found = [llm.generate([each], greedy(logprobs=2), use_tqdm=False)[0] for each in prompts(self.bench)]
            self._expected[model] = [each.outputs[0] for each in found]
        return self._expected[model]

    def settings(self, folder: Path) -> dict[str, Any]:
        """The configuration of an engine for a checkpoint. No grammar is compiled, so that it is the same whichever
        wheels that compile grammars are installed, also where two of them tie."""
        use = {"model.path": str(folder), "model.dtype": "float32", "model.max_model_len": LONGEST}
        return {**use, "platform.use": self.bench.facts.name, "select.grammar.use": "none"}


def greedy(max_tokens: int = NEW_TOKENS, *, logprobs: int | None = None) -> SamplingParams:
    """Parameters of a greedy request of exactly so many tokens."""
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, logprobs=logprobs)


def prompts(bench: Bench) -> list[list[int]]:
    """Awkward lengths, one of them twice, one as long as can be, two that share a prefix."""
    draw = random.Random(bench.seed)
    lengths = (1, 33, 5, 64, 16, 47, LONGEST - NEW_TOKENS)
    made = [[draw.randrange(3, 380) for _ in range(length)] for length in lengths]
    return [*made, made[1], made[3][:48] + made[2]]


def compare(tokens: Sequence[int], expected: Any, length: int, where: str = "", near: float = NEAR) -> int:
    """Equal tokens, up to one where two are equally likely; returns how many. ``expected`` has log-probabilities."""
    for at, (token, wanted) in enumerate(zip(tokens, expected.token_ids, strict=False)):
        if token != wanted:
            entry = expected.logprobs[at]
            other = dict(entry.top).get(token, -torch.inf)
            message = f"of a prompt of {length} tokens, generated token {at} is {token}, and the engine's is {wanted}"
            assert entry.logprob - other < near, f"{where}{message}"
            return at
    return len(tokens)


def allowed(likely: Tensor, *, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> set[int]:
    """Tokens that may be drawn, with those that are as likely but for rounding. ``likely`` are probabilities
    ``[vocab]``; each limit is of what the one before it leaves, in the order of the arguments."""
    order = likely.argsort(descending=True)
    kept = len(order)
    if top_k:
        kept = int((likely >= likely[order[top_k - 1]] * (1 - NEAR)).sum())
    if top_p < 1:
        among = likely[order[:kept]] / likely[order[:kept]].sum()
        kept = min(kept, int((among.cumsum(0) - among < top_p + NEAR).sum()))
    if min_p:
        kept = min(kept, int((likely >= min_p * likely.max() * (1 - NEAR)).sum()))
    return set(order[:kept].tolist())

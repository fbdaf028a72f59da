"""Cases of executors that serve: small random checkpoints, in float32, against the engine's own executor.

What is served is awkward on purpose: prompts of odd lengths in one batch, more of them than slots, which later ones
take, chunks of a few tokens, and so few blocks of cache that requests are preempted.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from weakref import finalize

import torch
from torch import Tensor

from llmk.api import ExecutorSpec, LlmkError
from llmk.config import load
from llmk.engine.llm import LLM
from llmk.engine.wire.sampling_params import SamplingParams
from llmk.planning.boot import boot
from llmk_testing.bench import Bench
from llmk_testing.case import Case, Skip
from llmk_testing.checkpoints import write_checkpoint
from llmk_testing.model import ModelHarness

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "mistral with a window": ("mistral", {"sliding_window": 24, "head_dim": 32}),
    "gemma2": ("gemma2", {"head_dim": 16, "sliding_window": 24, "query_pre_attn_scalar": 24}),
    "mixtral": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
}
"""Types of transformers, and values of their configs."""
NEW_TOKENS = 24
_NEAR = 2e-3
"""Difference of the log-probabilities of two tokens, either of which may be chosen."""
_SEEDS = 16
_ENGINES: dict[str, dict[str, Any]] = {
    "whole prompts": {"cache.block_size": 16, "cache.num_blocks": 64, "scheduler.max_num_seqs": 8},
    "chunks, few blocks and slots": {
        "cache.block_size": 4,
        "cache.num_blocks": 50,
        "scheduler.max_num_seqs": 5,
        "scheduler.max_num_batched_tokens": 24,
    },
}


def cases(spec: ExecutorSpec, bench: Bench) -> Iterator[Case]:
    """The cases of one executor."""
    served = _Served(spec, bench)

    def case(name: str, run: Callable[[], str | None]) -> Case:
        return Case(spec.id, "executor", name, run)

    for model in MODELS:
        for engine in _ENGINES:
            run = partial(_greedy, served, model, engine)
            yield case(f"{model}: greedy tokens are those of the engine, with {engine}", run)
    yield case("a seed gives the same tokens each time, and another one others", partial(_seeded, served))
    yield case("tokens are drawn from those that top_k, top_p and min_p leave", partial(_drawn, served))
    yield case("logits that are NaN are the engine's error", partial(_broken, served))


@dataclass(slots=True, weakref_slot=True)
class _Served:
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
            model_type, config = MODELS[model]
            self._folders[model] = write_checkpoint(folder / "model", model_type, **config)
        folder = self._folders[model]
        verdict = self.spec.supports(boot(load(self._settings(folder), environ={})).executor_query)
        if not verdict:
            raise Skip(f"{model}: {'; '.join(map(str, verdict.reasons))}")
        return folder

    def any_folder(self) -> Path:
        """The first checkpoint that it can run."""
        reasons = []
        for model in MODELS:
            try:
                return self.folder(model)
            except Skip as reason:
                reasons.append(str(reason))
        raise Skip(reasons[0])

    def open(self, folder: Path, engine: Mapping[str, Any], *, own: bool = False) -> LLM:
        """An engine with the executor; ``own``: with the engine's own."""
        use = {} if own else {"select.executor.use": self.spec.id}
        return LLM(**{**self._settings(folder), **engine, **use})

    def expected(self, model: str) -> list[Any]:
        """Greedy outputs of the engine's own, each prompt alone."""
        if model not in self._expected:
            params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, logprobs=2)
            with self.open(self.folder(model), _ENGINES["whole prompts"], own=True) as llm:
                found = [llm.generate([each], params, use_tqdm=False)[0] for each in prompts(self.bench)]
            self._expected[model] = [each.outputs[0] for each in found]
        return self._expected[model]

    def _settings(self, folder: Path) -> dict[str, Any]:
        use = {"model.path": str(folder), "model.dtype": "float32", "model.max_model_len": 128}
        return {**use, "platform.use": self.bench.facts.name}


def prompts(bench: Bench) -> list[list[int]]:
    """Awkward lengths, one of them twice, two that share a prefix."""
    draw = random.Random(bench.seed)
    made = [[draw.randrange(3, 380) for _ in range(length)] for length in (1, 33, 5, 64, 16, 47, 30)]
    return [*made, made[1], made[3][:48] + made[2]]


def _greedy(served: _Served, model: str, engine: str) -> str:
    folder, expected = served.folder(model), served.expected(model)
    logprobs = 0 if "logprobs" in served.spec.knows else None
    params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, logprobs=logprobs)
    given = prompts(served.bench)
    with served.open(folder, _ENGINES[engine]) as llm:
        for which in (range(len(given)), reversed(range(len(given)))):  # later ones get the slots of the first
            order = list(which)
            found = llm.generate([given[each] for each in order], params, use_tqdm=False)
            for number, output in zip(order, found, strict=True):
                _compare(output.outputs[0], expected[number], len(given[number]))
        return f"{2 * len(given)} requests, {llm.stats.preemptions} preemptions"


def _compare(found: Any, expected: Any, length: int) -> None:
    """Equal tokens, up to one where two are equally likely."""
    for at, (token, wanted) in enumerate(zip(found.token_ids, expected.token_ids, strict=True)):
        entry = expected.logprobs[at]
        if token != wanted:
            near = dict(entry.top).get(token, -torch.inf)
            message = f"of a prompt of {length} tokens, generated token {at} is {token}, and the engine's is {wanted}"
            assert entry.logprob - near < _NEAR, message
            return
        if found.logprobs:
            value = found.logprobs[at].logprob
            assert abs(value - entry.logprob) < _NEAR, f"log-probability {value} of token {at}, not {entry.logprob}"


def _generated(llm: LLM, given: Sequence[Sequence[int]], **params: Any) -> list[tuple[int, ...]]:
    """Tokens of each prompt at each of some seeds."""
    pairs = [(prompt, seed) for seed in range(_SEEDS) for prompt in given]
    each = [SamplingParams(temperature=1.0, ignore_eos=True, seed=seed, **params) for _, seed in pairs]
    found = llm.generate([list(prompt) for prompt, _ in pairs], each, use_tqdm=False)
    return [tuple(output.outputs[0].token_ids) for output in found]


def _seeded(served: _Served) -> None:
    given = prompts(served.bench)[1:3]
    with served.open(served.any_folder(), _ENGINES["chunks, few blocks and slots"]) as llm:
        first, again = _generated(llm, given, max_tokens=8), _generated(llm, given, max_tokens=8)
    assert first == again, "the same seeds give other tokens the second time"
    for number in range(len(given)):
        own = first[number :: len(given)]
        assert len(set(own)) > _SEEDS // 2, f"{_SEEDS} seeds give {len(set(own))} answers to one prompt"


def _drawn(served: _Served) -> str:
    folder, given = served.any_folder(), _undecided(served)
    limits: dict[str, dict[str, Any]] = {"top_k": {"top_k": 3}, "top_p": {"top_p": 0.6}, "min_p": {"min_p": 0.3}}
    tried = ["nothing", *(name for name in limits if name in served.spec.knows)]
    with served.open(folder, _ENGINES["whole prompts"]) as llm:
        for name in tried:
            firsts = _generated(llm, list(given), max_tokens=1, **limits.get(name, {}))
            for number, (prompt, likely) in enumerate(given.items()):
                found = {token for (token,) in firsts[number :: len(given)]}
                allowed = _allowed(likely, **limits.get(name, {}))
                what = f"with {limits.get(name, 'temperature 1 alone')}, of a prompt of {len(prompt)} tokens"
                assert found <= allowed, (
                    f"{what}: {sorted(found - allowed)} are drawn, which are not among {len(allowed)}"
                )
                assert len(found) > 1 or len(allowed) == 1, f"{what}: {_SEEDS} seeds draw one token"
    return f"{', '.join(tried)}; {len(given)} prompts"


def _undecided(served: _Served) -> dict[tuple[int, ...], Tensor]:
    """Prompts after which no token is much more likely than all others, and the probabilities ``[vocab]``."""
    draw = random.Random(served.bench.seed)
    found: dict[tuple[int, ...], Tensor] = {}
    harness = ModelHarness.of(served.any_folder(), {"model.dtype": "float32", "model.max_model_len": 128})
    for number in range(40):
        prompt = tuple(draw.randrange(3, 380) for _ in range(1 + number % 9))
        (logits,) = harness.step([(number, prompt)])
        likely = logits[-1].softmax(-1).cpu()
        if float(likely.max()) < 0.4 and len(found) < 5:
            found[prompt] = likely
    assert found, "the kit's checkpoint has no prompt with several likely tokens"
    return found


def _allowed(likely: Tensor, *, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> set[int]:
    """Tokens that may be drawn, with those that are as likely but for rounding."""
    order = likely.argsort(descending=True)
    kept = len(order)
    if top_k:
        kept = int((likely >= likely[order[top_k - 1]] * (1 - _NEAR)).sum())
    if top_p < 1:
        before = likely[order].cumsum(0) - likely[order]
        kept = int((before < top_p + _NEAR).sum())
    if min_p:
        kept = int((likely >= min_p * likely.max() * (1 - _NEAR)).sum())
    return set(order[:kept].tolist())


def _broken(served: _Served) -> str:
    from safetensors.torch import load_file, save_file

    folder = served.any_folder()
    copy = folder.parent / "broken"
    shutil.copytree(folder, copy, dirs_exist_ok=True)
    tensors = load_file(copy / "model.safetensors")
    tensors["model.norm.weight"].fill_(torch.nan)
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    engine, own = (_said(served, copy, own=own) for own in (True, False))
    assert engine, "the engine's own executor takes NaN for logits"
    assert own == engine, f"the request ends with {own or 'tokens'!r}, and by the engine's own executor with {engine!r}"
    return engine


def _said(served: _Served, folder: Path, *, own: bool) -> str:
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    with served.open(folder, _ENGINES["whole prompts"], own=own) as llm:
        try:
            llm.generate([[5, 6, 7]], params, use_tqdm=False)
        except LlmkError as error:
            return str(error)
    return ""

"""Cases of executors that draw tokens: from what the parameters leave, at a temperature, by each request's seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from llmk.config import load
from llmk.engine.llm import LLM
from llmk.engine.wire.sampling_params import SamplingParams
from llmk.planning.boot import boot
from llmk_testing.case import Case
from llmk_testing.model import ModelHarness
from llmk_testing.served import CHUNKS, WHOLE, Served, allowed, compare, greedy, prompts

_SEEDS = 16
_LIMITS: dict[str, dict[str, Any]] = {"top_k": {"top_k": 3}, "top_p": {"top_p": 0.6}, "min_p": {"min_p": 0.3}}
_FLAT_TOKENS = 24
_HOT = 2.0
_SIGMAS = 5.0


def cases(served: Served, case: Callable[[str, Callable[[], str | None]], Case]) -> Iterator[Case]:
    """The cases of one executor."""
    yield case("a seed gives the same tokens each time, and another one others", partial(_seeded, served))
    yield case("a seed's tokens don't depend on the batch, and are new at each position", partial(_flat, served))
    yield case("tokens are drawn from those that top_k, top_p and min_p leave", partial(_drawn, served))
    yield case("tokens are as likely as the temperature says", partial(_tempered, served))
    yield case("each request of a batch is sampled by its own parameters", partial(_mixed, served))


def _generated(
    llm: LLM, given: Sequence[Sequence[int]], seeds: Sequence[int] = range(_SEEDS), **params: Any
) -> list[tuple[int, ...]]:
    """Tokens of each prompt at each of some seeds."""
    pairs = [(prompt, seed) for seed in seeds for prompt in given]
    each = [SamplingParams(**{"temperature": 1.0, "ignore_eos": True, "seed": seed, **params}) for _, seed in pairs]
    found = llm.generate([list(prompt) for prompt, _ in pairs], each, use_tqdm=False)
    return [tuple(output.outputs[0].token_ids) for output in found]


def _seeded(served: Served) -> None:
    given = prompts(served.bench)[1:3]
    with served.open(served.any_folder(), CHUNKS) as llm:
        first, again = _generated(llm, given, max_tokens=8), _generated(llm, given, max_tokens=8)
    assert first == again, "the same seeds give other tokens the second time"
    for number in range(len(given)):
        own = first[number :: len(given)]
        assert len(set(own)) > _SEEDS // 2, f"{_SEEDS} seeds give {len(set(own))} answers to one prompt"


def _flat(served: Served) -> str:
    """Of a model whose logits are all 0, tokens show the random numbers alone."""
    model = served.any_model()
    folder, _ = served.changed(model, "flat", {"model.norm.weight": (slice(None), _zero(served, model))})
    vocab = boot(load(served.settings(folder), environ={})).facts.vocab_size
    prompt, seeds = [5, 6, 7], [*range(8), 1 << 40, (1 << 40) + 1]
    with served.open(folder, CHUNKS) as llm:
        together = _generated(llm, [prompt], seeds, max_tokens=_FLAT_TOKENS)
        alone = [_generated(llm, [prompt], [seed], max_tokens=_FLAT_TOKENS)[0] for seed in seeds[::3]]
        among = _among_others(served, llm, prompt, seeds[::2])
    for tokens, seed, one in zip(together[::2], seeds[::2], among, strict=True):
        assert tokens == one, f"seed {seed} gives {tokens[:4]}…, and {one[:4]}… next to requests of other parameters"
    for tokens, seed, one in zip(together[::3], seeds[::3], alone, strict=True):
        assert tokens == one, f"seed {seed} gives {tokens[:4]}… in a batch of {len(seeds)}, and alone {one[:4]}…"
    for tokens, seed in zip(together, seeds, strict=True):
        assert max(tokens) < vocab, f"token {max(tokens)} is drawn, of a vocabulary of {vocab}"
        assert len(set(tokens)) > _FLAT_TOKENS // 2, f"of a flat distribution, seed {seed} draws {tokens}"
    for (seed, one), (other, tokens) in ((a, b) for a in enumerate(together) for b in enumerate(together) if a < b):
        for shift in (-2, -1, 0, 1, 2):
            pairs = zip(one[max(0, shift) :], tokens[max(0, -shift) :], strict=False)
            same = sum(a == b for a, b in pairs)
            assert same < 4, (
                f"of a flat distribution, seeds {seeds[seed]} and {seeds[other]} draw {same} equal tokens, where one is"
                f" shifted by {shift}"
            )
    mean = sum(map(sum, together)) / (len(seeds) * _FLAT_TOKENS) / (vocab - 1)
    assert abs(mean - 0.5) < _SIGMAS * (12 * len(seeds) * _FLAT_TOKENS) ** -0.5, f"flat draws have the mean {mean:.2f}"
    return f"{len(seeds)} seeds"


def _among_others(served: Served, llm: LLM, prompt: list[int], seeds: Sequence[int]) -> list[tuple[int, ...]]:
    """Tokens of each seed, where requests of other parameters and lengths are before and behind each."""
    limits = [each for name, each in _LIMITS.items() if name in served.spec.knows]
    kinds: list[dict[str, Any]] = [{"temperature": 0.0}, {"seed": None}, {"temperature": _HOT, "seed": 0}, *limits]
    params = []
    for number, seed in enumerate(seeds):
        own: dict[str, Any] = {"temperature": 1.0, "max_tokens": _FLAT_TOKENS, "ignore_eos": True, "seed": seed}
        other = {**own, "max_tokens": 5 + number, **kinds[number % len(kinds)]}
        params += [SamplingParams(**other), SamplingParams(**own)]
    found = llm.generate([prompt] * len(params), params, use_tqdm=False)
    return [tuple(output.outputs[0].token_ids) for output in found[1::2]]


def _zero(served: Served, model: str) -> float:
    """The weight of the last norm with which all is 0: some families add 1 to it."""
    return -1.0 if model.startswith("gemma") else 0.0


def _drawn(served: Served) -> str:
    folder, given = served.any_folder(), _undecided(served)
    known = [name for name in _LIMITS if name in served.spec.knows]
    tried: list[dict[str, Any]] = [{}, *(_LIMITS[name] for name in known)]
    if len(known) > 1:
        tried += [{name: value for each in known for name, value in _LIMITS[each].items()}]
    tried += [{"temperature": _HOT, **each} for each in tried[1:]]
    with served.open(folder, WHOLE) as llm:
        for limits in tried:
            firsts = _generated(llm, list(given), max_tokens=1, **limits)
            for number, (prompt, logits) in enumerate(given.items()):
                found = {token for (token,) in firsts[number :: len(given)]}
                _check_drawn(found, logits, limits, f"with {limits or 'nothing'}, of a prompt of {len(prompt)} tokens")
    return f"{len(tried)} limits, {len(given)} prompts"


def _check_drawn(found: set[int], logits: Tensor, limits: Mapping[str, Any], what: str) -> None:
    left, likely = _left(logits, limits), (logits / limits.get("temperature", 1.0)).softmax(-1)
    assert found <= left, f"{what}: {sorted(found - left)} are drawn, which are not among {len(left)}"
    first = float(likely.max()) / float(likely[list(left)].sum())
    assert len(found) > 1 or first > 0.7, f"{what}: {_SEEDS} seeds draw one token, of {len(left)}"


def _left(logits: Tensor, params: Mapping[str, Any]) -> set[int]:
    """Tokens that may be drawn with these parameters."""
    limits = {name: value for name, value in params.items() if name != "temperature"}
    return allowed((logits / params.get("temperature", 1.0)).softmax(-1), **limits)


def _tempered(served: Served) -> str:
    """The mean of the drawn tokens' logits is that of the distribution, within what chance allows."""
    first, *others = served.drawing()
    said = [_tempered_model(served, first, (0.25, _HOT)), *(_tempered_model(served, each, (1.0,)) for each in others)]
    return "; ".join(said)


def _tempered_model(served: Served, model: str, temperatures: Sequence[float]) -> str:
    folder, given = served.folder(model), _undecided(served, model)
    seeds = range(100, 100 + 3 * _SEEDS)
    said = []
    with served.open(folder, WHOLE) as llm:
        for temperature in temperatures:
            tokens = [token for (token,) in _generated(llm, list(given), seeds, max_tokens=1, temperature=temperature)]
            off, spread = 0.0, 0.0
            for number, logits in enumerate(given.values()):
                likely = (logits / temperature).softmax(-1)
                mean = float((likely * logits).sum())
                spread += len(seeds) * (float((likely * logits**2).sum()) - mean**2)
                off += sum(float(logits[token]) - mean for token in tokens[number :: len(given)])
            sigmas = off / max(spread, 1e-9) ** 0.5
            assert abs(sigmas) < _SIGMAS, (
                f"of {model} at temperature {temperature}, {len(tokens)} draws have logits that are {abs(sigmas):.0f}"
                f" standard deviations {'above' if sigmas > 0 else 'below'} what is to be expected"
            )
            said.append(f"{sigmas:+.1f} at {temperature}")
    return f"{model}: {', '.join(said)}"


def _mixed(served: Served) -> str:
    """Greedy ones among them, in more requests than there are slots, which others of other parameters take."""
    model, given = served.any_model(), list(_undecided(served).items())
    own, expected = prompts(served.bench), served.expected(model)
    known = [limits for name, limits in _LIMITS.items() if name in served.spec.knows]
    kinds: list[dict[str, Any]] = [{"temperature": 0.0}, {"temperature": 2.0}, *known, {"temperature": 0.25}]
    draw = random.Random(served.bench.seed)
    with served.open(served.folder(model), CHUNKS) as llm:
        for _ in range(3):
            order = [(kind, number) for kind in kinds for number in range(4)]
            draw.shuffle(order)
            asked = [
                own[number + 1] if kind is kinds[0] else list(given[number % len(given)][0]) for kind, number in order
            ]
            params = [
                greedy(6)
                if kind is kinds[0]
                else SamplingParams(**{"temperature": 1.0, "max_tokens": 1, "ignore_eos": True, "seed": seed, **kind})
                for seed, (kind, _) in enumerate(order)
            ]
            found = llm.generate(asked, params, use_tqdm=False)
            for (kind, number), output in zip(order, found, strict=True):
                tokens = output.outputs[0].token_ids
                if kind is kinds[0]:
                    compare(tokens, expected[number + 1], len(own[number + 1]), "next to requests that are drawn, ")
                    continue
                left = _left(given[number % len(given)][1], kind)
                assert set(tokens) <= left, f"{tokens[0]} is drawn with {kind} next to others, not among {len(left)}"
    return f"{3 * len(order)} requests"


def _undecided(served: Served, model: str = "") -> dict[tuple[int, ...], Tensor]:
    """Prompts after which no token is much more likely than all others, and the logits ``[vocab]``, of a model; without
    one, the first that it can run."""
    draw = random.Random(served.bench.seed)
    found: dict[tuple[int, ...], Tensor] = {}
    folder = served.folder(model) if model else served.any_folder()
    harness = ModelHarness.of(folder, {"model.dtype": "float32", "model.max_model_len": 128})
    for number in range(40):
        prompt = tuple(draw.randrange(3, 380) for _ in range(1 + number % 9))
        (logits,) = harness.step([(number, prompt)])
        last = logits[-1].float().cpu()
        if float(last.softmax(-1).max()) < 0.4 and len(found) < 5:
            found[prompt] = last
    assert found, "the kit's checkpoint has no prompt with several likely tokens"
    return found

"""The demo model's tokens on a platform, against its plain implementation in ``transformers`` on the CPU in float32."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from llmk import LLM, SamplingParams
from llmk.config import load
from llmk.kernel.registry import Registry
from llmk.planning.choices.models import find_checkpoint
from llmk_testing.verify.record import Part

TEXTS = (
    "What is the capital of France?",
    "A",
    "The quick brown fox jumps over the lazy dog, and then",
    "def add(a, b):\n    return",
    "1, 2, 3, 4,",
    "Once upon a time, in a village by the sea, there was a lighthouse. " * 12,
)
_NEW_TOKENS, _THOROUGH_TOKENS = 24, 96
_TIE = {"float32": 0.02}
"""How far below the reference's first choice a token's logit may be, by dtype: of two that are
as good as equal, either may be chosen. In other dtypes rounding decides more, so only the share is reported."""
_DECODED, _PROMPT = 64, 448

_NO_GRAMMARS = {"select.grammar.use": "none"}
"""Installed compilers of grammars may tie, and none is needed."""


def demo_folder() -> Path:
    """The demo model's folder. Raises LlmkError where ``llmk-models`` is not installed."""
    return Path(find_checkpoint(Registry.discover(load().config.plugins), ""))


def compare(platform: str, dtypes: tuple[str, ...], *, thorough: bool = False) -> Part:
    """Greedy tokens in each dtype, all prompts in one batch; each token is compared given those before it."""
    folder, part = demo_folder(), Part()
    count = _THOROUGH_TOKENS if thorough else _NEW_TOKENS
    params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
    outputs = {}
    for dtype in dtypes:
        with LLM(str(folder), **{"platform.use": platform, "model.dtype": dtype, **_NO_GRAMMARS}) as llm:
            outputs[dtype] = [
                (list(output.prompt_token_ids), list(output.outputs[0].token_ids))
                for output in llm.generate(TEXTS, params, use_tqdm=False)
            ]
    reference = _reference(folder)
    for dtype, pairs in outputs.items():
        gaps = [gap for prompt, new in pairs for gap in _gaps(reference, prompt, new)]
        equal, worst = sum(gap == 0 for gap in gaps), max(gaps)
        part.found[dtype] = {"prompts": len(pairs), "tokens": len(gaps), "equal": equal, "worst": round(worst, 4)}
        if not worst <= _TIE.get(dtype, float("inf")):
            part.problems.append(f"in {dtype} a token's logit is {worst:.3g} below that of the reference's choice")
    return part


def speeds(platform: str) -> dict[str, float]:
    """Tokens a second of the demo model in the platform's own dtype: decoding one and eight requests, and a prompt."""
    params = SamplingParams(temperature=0.0, max_tokens=_DECODED, ignore_eos=True)
    first = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    settings: dict[str, Any] = {"platform.use": platform, "cache.prefix_caching": False, "max_num_batched_tokens": 512}
    with LLM(str(demo_folder()), **settings, **_NO_GRAMMARS) as llm:
        decode = {n: _seconds(llm, [[7 + i, 9, 11] for i in range(n)], params) for n in (1, 8)}
        prompt = _seconds(llm, [[3 + i % 200 for i in range(_PROMPT)]], first)
    return {
        "decode, 1 request": round(_DECODED / decode[1], 1),
        "decode, 8 requests": round(8 * _DECODED / decode[8], 1),
        f"prompt of {_PROMPT}": round(_PROMPT / prompt, 1),
    }


def _seconds(llm: LLM, prompts: list[list[int]], params: SamplingParams) -> float:
    """The least of some runs, after one that compiles."""
    times = []
    for _ in range(4):
        started = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        times.append(time.perf_counter() - started)
    return min(times[1:])


def _reference(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@torch.inference_mode()
def _gaps(reference: Any, prompt: list[int], new: list[int]) -> list[float]:
    """How far the logit of each new token is below the greatest, given the tokens before it."""
    logits = reference(torch.tensor([prompt + new[:-1]])).logits[0, len(prompt) - 1 :].float()
    chosen = logits.gather(1, torch.tensor(new)[:, None]).squeeze(1)
    return [float(gap) for gap in logits.amax(dim=1) - chosen]

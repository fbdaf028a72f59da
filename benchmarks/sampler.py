"""Host time that the sampler adds to a step, with ops that cost nothing.

    python benchmarks/sampler.py

Processor time per step, best of several rounds, for steps that sample the same requests as the one before, and for
steps in each of which one request has left and another has come.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from llmk.engine.device.sample_rows import SampleRows
from llmk.engine.sampling.sampler import Sampler
from llmk.engine.wire.sampling_params import SamplingParams
from llmk.engine.wire.step import NewRequest

ROWS = (8, 256)
ROUNDS, STEPS = 9, 300
CASES = {
    "greedy": SamplingParams(temperature=0),
    "sampled, top-k and top-p": SamplingParams(top_k=20, top_p=0.9),
    "min_tokens and a bias": SamplingParams(temperature=0, min_tokens=1 << 20, logit_bias={3: 1.0}),
    "bad words": SamplingParams(temperature=0, bad_word_ids=((1, 2), (3, 4, 5))),
    "penalties": SamplingParams(temperature=0, presence_penalty=1.0),
    "log-probabilities": SamplingParams(temperature=0, logprobs=0),
}


class NullOps:
    """Ops that return what they were given, or something of the right length."""

    def kernel(self, kind: str, name: str) -> Callable[..., Any]:
        """The op ``name``."""
        tokens, begun = torch.zeros(max(ROWS), dtype=torch.int64), torch.zeros(2 * max(ROWS), dtype=torch.bool)
        special: dict[str, Callable[..., Any]] = {
            "sample": lambda logits, *_: tokens[: logits.shape[0]],
            "match_suffixes": lambda tokens, slots, *_: begun[: slots.shape[0]],
            "logprobs": lambda raw, tokens, _: (tokens, tokens, tokens, tokens),
        }
        return special.get(name, lambda logits, *_: logits)


def microseconds(rows: int, params: SamplingParams, *, churn: bool) -> float:
    """Per step."""
    sampler = Sampler(NullOps(), rows, torch.device("cpu"))  # type: ignore[arg-type]
    tokens, computed = torch.zeros(rows, 64, dtype=torch.int32), torch.full((rows,), 20)
    batch: Any = SimpleNamespace(tokens=tokens, computed=computed)
    requests = [
        NewRequest(
            id=str(slot),
            slot=slot,
            token_ids=[1] * 20,
            num_prompt_tokens=20,
            num_computed=0,
            block_ids=[],
            params=params,
            eos_token_ids=(2,),
            seed=slot,
        )
        for slot in range(rows)
    ]
    sampler.update([], requests, tokens)
    logits, slots, index = torch.zeros(rows, 64), list(range(rows)), torch.arange(rows)
    lengths = [20] * rows
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.process_time()
        for step in range(STEPS):
            if churn:
                sampler.update([step % rows], [requests[step % rows]], tokens)
            sampler(logits, SampleRows(list(slots), index, computed, lengths), batch)
        best = min(best, (time.process_time() - start) / STEPS)
    return best * 1e6


@torch.inference_mode()
def main() -> None:
    """Prints the table."""
    torch.set_num_threads(1)
    print(f"{'µs per step':28}" + "".join(f"{f'{rows} rows':>12}{'+ 1 in, out':>12}" for rows in ROWS))
    for name, params in CASES.items():
        times = [microseconds(rows, params, churn=churn) for rows in ROWS for churn in (False, True)]
        print(f"{name:28}" + "".join(f"{time:12.1f}" for time in times))


if __name__ == "__main__":
    main()

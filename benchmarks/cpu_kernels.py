"""Native kernels of CPUs next to the references: recurrent layers, latent attention and sampling.

    OMP_NUM_THREADS=1 python benchmarks/cpu_kernels.py

Processor time of one thread, the best of some alternating calls, in milliseconds, as a table in Markdown. Shapes are
those of Qwen3-Next (delta rule: 32 heads of 128, 16 key heads; convolution: 8,192 channels), Mamba-2 (64 heads of 64,
states of 128), Mamba (3,072 channels, states of 16), DeepSeek-V2-Lite (16 heads of 576 over latent vectors of 512) and
a vocabulary of 151,936.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from llmk.api import AttentionQuery, CacheStep, Host
from llmk.reference.attention.paged import ReferenceAttention
from llmk.reference.recurrent import causal_conv, delta_rule, gated_norm, selective_scan, state_space_scan
from llmk.reference.sampling.sample import sample
from llmk_cpu.native import batch, latent, recurrent
from llmk_cpu.native.library import library
from llmk_cpu.probe import probe

BLOCK, ROUNDS, VOCABULARY = 16, 7, 151_936
CPU = torch.device("cpu")
Case = tuple[str, Callable[[], object], Callable[[], object]]


def step_of(requests: int, new: int, before: int) -> tuple[CacheStep, int]:
    """Requests of equal lengths, and how many blocks they have."""
    length, tokens = before + new, requests * new
    each = -(-length // BLOCK)
    table = torch.arange(requests * each, dtype=torch.int32).view(requests, each)
    starts, lengths = torch.arange(requests + 1, dtype=torch.int32) * new, torch.full((requests,), length).int()
    places = torch.arange(before, length).repeat(requests), torch.arange(requests).repeat_interleave(new)
    slots = table[places[1], places[0] // BLOCK].long() * BLOCK + places[0] % BLOCK
    host = (new,) * requests, (length,) * requests
    step = CacheStep(starts, lengths, table, slots, requests, tokens, new, length, BLOCK, *host)
    return step, requests * each


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.bfloat16)


def recurrent_cases(requests: int, new: int) -> Iterator[Case]:
    """A step of each kind of layer."""
    step, blocks = step_of(requests, new, 0 if new > 1 else 300)
    tokens = requests * new
    delta = draw(tokens, 16, 128), draw(tokens, 16, 128), draw(tokens, 32, 128), -torch.rand(tokens, 32)
    args = *delta, torch.rand(tokens, 32), torch.zeros(blocks, 32, 128, 128), step
    yield "gated delta rule", lambda: delta_rule.gated_delta_rule(*args), lambda: recurrent.gated_delta_rule(*args)
    decays = -torch.rand(64)
    space = draw(tokens, 64, 64), draw(tokens, 64), decays, draw(tokens, 1, 128), draw(tokens, 1, 128), decays, decays
    own = *space, (0.0, None), torch.zeros(blocks, 64, 64, 128), step
    yield "Mamba-2", lambda: state_space_scan.state_space_scan(*own), lambda: recurrent.state_space_scan(*own)
    wide, floats = draw(tokens, 3072), torch.randn(3072)
    rows = draw(tokens, 16), draw(tokens, 16)
    scan = wide, wide, -torch.rand(3072, 16), *rows, floats, floats, wide, torch.zeros(blocks, 3072, 16), step
    yield "Mamba", lambda: selective_scan.selective_scan(*scan), lambda: recurrent.selective_scan(*scan)
    conv = draw(tokens, 8192), draw(8192, 4), None, torch.zeros(blocks, 3, 8192, dtype=torch.bfloat16), step
    yield "convolution", lambda: causal_conv.causal_conv(*conv), lambda: recurrent.causal_conv(*conv)
    norm = draw(tokens, 4096), draw(tokens, 4096), draw(4096), 1e-6
    yield "gated norm", lambda: gated_norm.gated_rms_norm(*norm), lambda: recurrent.gated_rms_norm(*norm)


def latent_case(requests: int, new: int, before: int) -> Case:
    """Attention over latent vectors."""
    facts = probe(Host()).facts
    assert facts is not None
    query = AttentionQuery(
        platform=facts, site="attention", dtype="bfloat16", num_heads=16, num_kv_heads=1, head_dim=576,
        latent_dim=512, block_size=BLOCK, cache_dtype="bfloat16", scale=0.05,
    )  # fmt: skip
    step, blocks = step_of(requests, new, before)
    q = draw(requests * new, 16, 576)

    def runs(backend: ReferenceAttention | latent.NativeLatentAttention) -> Callable[[], object]:
        cache, meta = draw(*backend.cache_layout(blocks).shape), backend.prepare(step)
        return lambda: backend.run(q, cache, meta)  # type: ignore[arg-type]

    what = f"latent attention over {before + new} tokens"
    return what, runs(ReferenceAttention(query, CPU)), runs(latent.NativeLatentAttention(query, CPU))


def sampling_cases(rows: int) -> Iterator[Case]:
    """Tokens drawn from distributions of which many tokens are likely."""
    logits, seeds, heat = draw(rows, VOCABULARY) * 3, torch.arange(rows), torch.full((rows,), 0.7)
    top_k, top_p = torch.full((rows,), 20), torch.full((rows,), 0.95)
    for name, cuts in (("", (None, None)), (", top-p", (None, top_p)), (", top-k and top-p", (top_k, top_p))):
        args = logits, heat, *cuts, None, seeds, seeds
        yield f"sampling{name}", lambda args=args: sample(*args), lambda args=args: batch.sample(*args)


def best(run: Callable[[], object], spent: list[float]) -> None:
    began = time.process_time()
    run()
    spent.append(1000 * (time.process_time() - began))


def main() -> None:
    """Prints a row for each case."""
    torch.set_num_threads(1)
    library().set_threads(1)
    print(f"{', '.join(library().levels)}\n\n| op | step | reference | native |\n| --- | --- | --- | --- |")
    for requests, new in ((1, 1), (8, 1), (1, 256)):
        cases = [*recurrent_cases(requests, new), latent_case(requests, new, 1023 if new == 1 else 256)]
        cases += sampling_cases(requests) if new == 1 else []
        for name, reference, native in cases:
            spent: tuple[list[float], list[float]] = ([], [])
            for _ in range(ROUNDS if new == 1 else 2):
                best(reference, spent[0])
                best(native, spent[1])
            step = f"{requests} of 1 token" if new == 1 else f"{requests} of {new} tokens"
            print(f"| {name} | {step} | {min(spent[0]):.2f} | {min(spent[1]):.2f} |", flush=True)


if __name__ == "__main__":
    main()

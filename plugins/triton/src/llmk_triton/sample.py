"""Choosing a token per row: the likeliest, or one drawn from what truncation leaves. Nothing is sorted."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from llmk_triton import pdl
from llmk_triton.draw import CHUNK, choose_kernel, collect_kernel
from llmk_triton.narrow import PIVOTS, ROUNDS, narrow_kernel
from llmk_triton.vocabulary import DEPTH, PART, WIDTH, find_peaks, key_token, row_peak, rows_of


@triton.jit
def likeliest_kernel(peaks, out, parts, PARTS: tl.constexpr, PDL: tl.constexpr):
    """The likeliest token of each row, a program each: int64 ``[rows]`` at ``out``."""
    row = tl.program_id(0)
    pdl.release(PDL)
    pdl.wait(PDL)
    tl.store(out + row, key_token(row_peak(peaks, row, parts, PARTS)).to(tl.int64))


def sample(
    logits: Tensor,
    temperature: Tensor | None,
    top_k: Tensor | None,
    top_p: Tensor | None,
    min_p: Tensor | None,
    seeds: Tensor | None,
    positions: Tensor | None,
) -> Tensor:
    """As :func:`llmk.reference.sampling.sample`, of logits in any floating dtype: the same token wherever the rounding
    of ``exp`` doesn't decide."""
    logits = rows_of(logits)
    num_rows = logits.shape[0]
    out = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    if not num_rows:
        return out
    peaks = find_peaks(logits)
    if temperature is None or seeds is None or positions is None:
        parts, on = peaks.shape[1], pdl.on()
        likeliest_kernel[(num_rows,)](
            peaks, out, parts, triton.next_power_of_2(parts), on, num_warps=1, **({"launch_pdl": True} if on else {})
        )
        return out
    _draw(logits, peaks, temperature, top_k, top_p, min_p, seeds, positions, out)
    return out


def _draw(
    logits: Tensor,
    peaks: Tensor,
    temperature: Tensor,
    top_k: Tensor | None,
    top_p: Tensor | None,
    min_p: Tensor | None,
    seeds: Tensor,
    positions: Tensor,
    out: Tensor,
) -> None:
    (rows, vocab), parts, device = logits.shape, peaks.shape[1], logits.device
    # What is absent is not read; its type still must be right.
    k = seeds if top_k is None else top_k
    p = temperature if top_p is None else top_p
    m = temperature if min_p is None else min_p
    has = [int(given is not None) for given in (top_k, top_p, min_p)]
    table, strides = (temperature, k, p), [given.stride(0) for given in (temperature, k, p, m, seeds, positions)]
    bounds = torch.empty(rows, 2, dtype=torch.float32, device=device)
    goals = torch.empty(rows, 2, dtype=torch.int64, device=device)
    sums = torch.empty(rows, parts, PIVOTS, dtype=torch.int64, device=device)
    counters = torch.zeros(ROUNDS + 1, rows, dtype=torch.int32, device=device)
    on = pdl.on()
    options = {"PARTS": triton.next_power_of_2(parts), "PDL": on, **({"launch_pdl": True} if on else {})}
    part = {"DEPTH": DEPTH, "WIDTH": WIDTH, "num_warps": 4, **options}
    stride = logits.stride(0)
    for turn in range(ROUNDS) if has[0] or has[1] else ():
        narrow_kernel[(parts, rows)](
            logits, peaks, *table, sums, bounds, goals, counters[turn], stride, vocab, *strides[:3], *has[:2],
            FIRST=turn == 0, PIVOTS=PIVOTS, **part,
        )  # fmt: skip
    kept = sums.view(-1)[: rows * parts]
    open_ids = torch.empty(rows, vocab, dtype=torch.int32, device=device)
    collect_kernel[(parts, rows)](
        logits, peaks, *table, m, bounds, kept, open_ids, counters[-1], stride, vocab, *strides[:4], *has, **part
    )
    choose_kernel[(rows,)](
        logits, peaks, *table, m, seeds, positions, bounds, goals, kept, open_ids, counters[-1], out, stride, vocab,
        parts, *strides, *has, CHUNK=CHUNK, PART=PART, num_warps=16, **options,
    )  # fmt: skip

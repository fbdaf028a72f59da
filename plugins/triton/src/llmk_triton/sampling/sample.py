"""Samples a token per row, greedily or from the truncated distribution, without sorting."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from llmk_triton.common import pdl
from llmk_triton.sampling.draw import choose_kernel, collect_kernel
from llmk_triton.sampling.truncation import narrow_kernel
from llmk_triton.sampling.vocabulary import find_peaks, key_token, part_options, row_peak, rows_of

ROUNDS = 2
PIVOTS = 8
"""Distances that a round tries."""
CHUNK = 8192
"""Open tokens that the sampling program keeps in registers; any more are loaded again for every sum. A row with fewer
open tokens needs no further round."""
CHOOSING_WARPS = 16


@triton.jit(do_not_specialize=["parts"])
def top_token_kernel(peaks, out, parts, PARTS: tl.constexpr, PDL: tl.constexpr):
    """The most likely token of each row, one program per row: int64 ``[rows]`` at ``out``."""
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
    """As :func:`llmk.reference.sampling.sample.sample`, of logits in any floating dtype: returns the same token except
    where the rounding of ``exp`` matters."""
    logits = rows_of(logits)
    num_rows = logits.shape[0]
    out = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    if not num_rows:
        return out
    peaks = find_peaks(logits)
    if temperature is None or seeds is None or positions is None:
        parts = peaks.shape[1]
        top_token_kernel[(num_rows,)](
            peaks, out, parts, PARTS=triton.next_power_of_2(parts), num_warps=1, **pdl.options()
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
    # Absent arguments are not read, but need the right type.
    k = seeds if top_k is None else top_k
    p = temperature if top_p is None else top_p
    m = temperature if min_p is None else min_p
    has = [int(given is not None) for given in (top_k, top_p, min_p)]
    table, strides = (temperature, k, p), [given.stride(0) for given in (temperature, k, p, m, seeds, positions)]
    bounds = torch.empty(rows, 2, dtype=torch.float32, device=device)
    goals = torch.empty(rows, 3, dtype=torch.int64, device=device)
    sums = torch.empty(rows, parts, PIVOTS, dtype=torch.int64, device=device)
    counters = torch.zeros(ROUNDS + 1, rows, dtype=torch.int32, device=device)
    of_part = {**part_options(), "PARTS": triton.next_power_of_2(parts)}
    stride = logits.stride(0)
    for turn in range(ROUNDS) if has[0] or has[1] else ():
        narrow_kernel[(parts, rows)](
            logits, peaks, *table, sums, bounds, goals, counters[turn], stride, vocab, *strides[:3], *has[:2],
            FEW=CHUNK, FIRST=turn == 0, PIVOTS=PIVOTS, **of_part,
        )  # fmt: skip
    kept = sums.view(-1)[: rows * parts]
    open_ids = torch.empty(rows, vocab, dtype=torch.int32, device=device)
    collect_kernel[(parts, rows)](
        logits, peaks, *table, m, bounds, kept, open_ids, counters[-1], stride, vocab, *strides[:4], *has, **of_part
    )
    choose_kernel[(rows,)](
        logits, peaks, *table, m, seeds, positions, bounds, goals, kept, open_ids, counters[-1], out, stride, vocab,
        parts, *strides, *has, CHUNK=CHUNK, **{**of_part, "num_warps": CHOOSING_WARPS},
    )  # fmt: skip

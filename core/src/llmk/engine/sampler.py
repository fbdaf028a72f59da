"""Chooses the next token of every request that a step brought to its end, on the device, for the whole batch at once.

Sampling parameters lie on the device by slot for as long as their request does. A feature that no request in the step
uses costs nothing: its tensors are not even built.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from llmk.engine.request import SamplingParams, TokenLogprobs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from llmk.engine.batch import Batch
    from llmk.engine.step import NewRequest
    from llmk.nn.build import Build


@dataclass(slots=True)
class _Slot:
    """What the host must know of a slot to decide which features a step needs."""

    params: SamplingParams
    num_prompt_tokens: int
    held_back: tuple[int, ...]
    """Token ids that must not be sampled before ``min_tokens`` is reached."""


@dataclass(slots=True)
class Sampled:
    """What was sampled, still on the device: ``token_ids`` int64 ``[samples]``, one per slot in ``slots``.

    ``logprobs`` are those of the rows in ``logprob_rows``, of which ``num_top`` says how many likeliest tokens each
    wants.
    """

    slots: list[int]
    token_ids: Tensor
    logprob_rows: list[int]
    num_top: list[int]
    logprobs: tuple[Tensor, Tensor, Tensor, Tensor] | None

    def logprobs_by_slot(self, token_ids: list[int]) -> dict[int, TokenLogprobs]:
        """Reads the log-probabilities back; ``token_ids`` is the host's copy of :attr:`token_ids`."""
        if self.logprobs is None:
            return {}
        logprob, rank, top_ids, top_logprobs = (tensor.tolist() for tensor in self.logprobs)
        return {
            self.slots[row]: TokenLogprobs(
                token_id=token_ids[row],
                logprob=logprob[i],
                rank=rank[i],
                top=tuple(zip(top_ids[i][:count], top_logprobs[i][:count], strict=True)),
            )
            for i, (row, count) in enumerate(zip(self.logprob_rows, self.num_top, strict=True))
        }


class Sampler:
    """Binds the sampling ops that the plan chose, and keeps each slot's parameters.

    ``table`` is float32 ``[slots, 6]``: temperature, top-p, min-p, presence, frequency and repetition penalty;
    ``whole`` is int64 ``[slots, 3]``: top-k, seed, prompt length.
    """

    def __init__(self, build: Build, num_slots: int, device: torch.device) -> None:
        self.device = device
        self.table = torch.zeros(num_slots, 6, dtype=torch.float32, device=device)
        self.whole = torch.zeros(num_slots, 3, dtype=torch.int64, device=device)
        self._penalize: Callable[..., Tensor] = build.kernel("op", "apply_penalties")
        self._bias: Callable[..., Tensor] = build.kernel("op", "apply_bias")
        self._sample: Callable[..., Tensor] = build.kernel("op", "sample")
        self._logprobs = build.kernel("op", "logprobs")
        self._slots: dict[int, _Slot] = {}

    def enter(self, requests: Sequence[NewRequest]) -> None:
        """Takes note of how new requests want to be sampled."""
        if not requests:
            return
        rows, table, whole = [], [], []
        for request in requests:
            p = request.params
            ends = p.stop_token_ids if p.ignore_eos else (*request.eos_token_ids, *p.stop_token_ids)
            self._slots[request.slot] = _Slot(p, request.num_prompt_tokens, ends if p.min_tokens else ())
            rows.append(request.slot)
            penalties = (p.presence_penalty, p.frequency_penalty, p.repetition_penalty)
            table.append((p.temperature, p.top_p, p.min_p, *penalties))
            whole.append((p.top_k, request.seed, request.num_prompt_tokens))
        index = self._tensor(rows, torch.int64)
        self.table[index] = self._tensor(table, torch.float32)
        self.whole[index] = self._tensor(whole, torch.int64)

    def __call__(self, logits: Tensor, slots: list[int], rows: Tensor, batch: Batch) -> Sampled:
        """Samples one token per row of ``logits`` (float32 ``[samples, vocab]``).

        ``slots`` are the rows' slots on the host, ``rows`` the same as int64 on the device.
        """
        states = [self._slots[slot] for slot in slots]
        wanted = [i for i, state in enumerate(states) if state.params.logprobs is not None]
        raw = logits[self._tensor(wanted, torch.int64)] if wanted else None
        table, whole = self.table[rows], self.whole[rows]
        known = batch.computed[rows]
        logits = self._apply_penalties(logits, states, batch.tokens, rows, known, table, whole)
        logits = self._apply_bias(logits, states, [batch.num_computed(slot) for slot in slots])
        token_ids = self._draw(logits, [state.params for state in states], known, table, whole)
        if raw is None:
            return Sampled(slots, token_ids, [], [], None)
        num_top = [states[i].params.logprobs or 0 for i in wanted]
        chosen = token_ids[self._tensor(wanted, torch.int64)]
        return Sampled(slots, token_ids, wanted, num_top, self._logprobs(raw, chosen, max(num_top)))

    def _draw(
        self, logits: Tensor, params: list[SamplingParams], known: Tensor, table: Tensor, whole: Tensor
    ) -> Tensor:
        if all(p.greedy for p in params):
            return self._sample(logits, None, None, None, None, None, None)
        return self._sample(
            logits,
            table[:, 0],
            whole[:, 0] if any(p.top_k for p in params) else None,
            table[:, 1] if any(p.top_p < 1 for p in params) else None,
            table[:, 2] if any(p.min_p for p in params) else None,
            whole[:, 1],
            known,
        )

    def _apply_penalties(
        self,
        logits: Tensor,
        states: list[_Slot],
        tokens: Tensor,
        rows: Tensor,
        known: Tensor,
        table: Tensor,
        whole: Tensor,
    ) -> Tensor:
        if not any(_penalized(state.params) for state in states):
            return logits
        prompt_mask, output_counts = count_tokens(tokens[rows], whole[:, 2], known, logits.shape[-1])
        return self._penalize(logits, prompt_mask, output_counts, table[:, 3], table[:, 4], table[:, 5])

    def _apply_bias(self, logits: Tensor, states: list[_Slot], lengths: list[int]) -> Tensor:
        rows: list[int] = []
        ids: list[int] = []
        values: list[float] = []
        for row, (state, length) in enumerate(zip(states, lengths, strict=True)):
            bias = state.params.logit_bias
            if length - state.num_prompt_tokens < state.params.min_tokens:
                bias = bias | dict.fromkeys(state.held_back, float("-inf"))
            if bias:
                rows += [row] * len(bias)
                ids += bias.keys()
                values += bias.values()
        if not rows:
            return logits
        return self._bias(
            logits, self._tensor(rows, torch.int64), self._tensor(ids, torch.int64), self._tensor(values, torch.float32)
        )

    def _tensor(self, values: Sequence[object], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype).to(self.device, non_blocking=True)


def _penalized(params: SamplingParams) -> bool:
    return bool(params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1.0)


def count_tokens(tokens: Tensor, prompt_lengths: Tensor, known: Tensor, vocab_size: int) -> tuple[Tensor, Tensor]:
    """What penalties look at: which tokens stand in each prompt, and how often each stands in the output.

    Args:
        tokens: int32 ``[samples, max_len]``.
        prompt_lengths, known: int64 ``[samples]``; tokens from ``prompt_lengths`` to ``known - 1`` are output.

    Returns:
        bool ``[samples, vocab]`` and int32 ``[samples, vocab]``.
    """
    column = torch.arange(tokens.shape[1], device=tokens.device)
    in_prompt = column < prompt_lengths[:, None]
    in_output = (column < known[:, None]) & ~in_prompt
    index = tokens.to(torch.int64)
    counts = torch.zeros(2, tokens.shape[0], vocab_size, dtype=torch.int32, device=tokens.device)
    counts[0].scatter_add_(1, index, in_prompt.to(torch.int32))
    counts[1].scatter_add_(1, index, in_output.to(torch.int32))
    return counts[0] > 0, counts[1]

"""Log-probabilities of prompts, for requests that want them, piece by piece as the prompt is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from llmk.engine.request import TokenLogprobs
from llmk.engine.sampler import Scores, read_scores, scores_to_host
from llmk.engine.step import NewRequest, ScoredTokens, Work
from llmk.engine.transfer import to_device

ROWS = 128
"""Rows of logits that are there at a time: with 256k tokens in float32, 128 MiB."""


@dataclass(slots=True)
class Scored:
    """Log-probabilities of one work item's prompt tokens, on their way to the host: of ``token_ids``, from ``start``
    on."""

    work: int
    start: int
    token_ids: list[int]
    num_top: int
    scores: list[Scores]

    def result(self) -> ScoredTokens:
        """Reads them, once they have arrived."""
        tokens: list[TokenLogprobs] = []
        for scores in self.scores:
            ids = self.token_ids[len(tokens) : len(tokens) + ROWS]
            tokens += read_scores(scores, ids, [self.num_top] * len(ids))
        return ScoredTokens(self.start, tokens)


@dataclass(slots=True)
class _Prompt:
    token_ids: Sequence[int]
    num_computed: int
    num_scored: int
    num_top: int


class Scorer:
    """Keeps the prompts that are to be scored. ``logits`` is the model's, ``logprobs`` the op of that name."""

    def __init__(self, logits: Callable[[Tensor], Tensor], logprobs: Callable[[Tensor, Tensor, int], Scores]) -> None:
        self._logits = logits
        self._logprobs = logprobs
        self._prompts: dict[int, _Prompt] = {}

    def update(self, freed: Sequence[int], new: Sequence[NewRequest]) -> None:
        """Forgets requests that left the batch, then takes note of those that entered it."""
        for slot in (*freed, *(request.slot for request in new)) if self._prompts else ():
            self._prompts.pop(slot, None)
        for request in new:
            prompt = request.token_ids[: request.num_prompt_tokens]
            wanted = request.params.prompt_logprobs
            if wanted is not None and request.num_scored < len(prompt):
                self._prompts[request.slot] = _Prompt(prompt, request.num_computed, request.num_scored, wanted)

    def __call__(self, hidden: Tensor, work: Sequence[Work]) -> list[Scored]:
        """Scores what ``work`` computes of prompts. ``hidden`` is ``[tokens, hidden]``, in the order of the work."""
        found: list[Scored] = []
        row = 0
        for number, item in enumerate(work if self._prompts else ()):
            prompt = self._prompts.get(item.slot)
            if prompt is not None:
                first, prompt.num_computed = prompt.num_computed, prompt.num_computed + item.num_tokens
                start = max(first + 1, prompt.num_scored)
                stop = min(prompt.num_computed + 1, len(prompt.token_ids))
                if start < stop:
                    rows = hidden[row + start - first - 1 : row + stop - first - 1]
                    found.append(self._score(number, start, list(prompt.token_ids[start:stop]), prompt.num_top, rows))
                if stop == len(prompt.token_ids):
                    del self._prompts[item.slot]
            row += item.num_tokens
        return found

    def _score(self, work: int, start: int, token_ids: list[int], num_top: int, hidden: Tensor) -> Scored:
        wanted = to_device(token_ids, hidden.device)
        scores = [
            scores_to_host(self._logprobs(self._logits(rows), targets, num_top))
            for rows, targets in zip(hidden.split(ROWS), wanted.split(ROWS), strict=True)
        ]
        return Scored(work, start, token_ids, num_top, scores)

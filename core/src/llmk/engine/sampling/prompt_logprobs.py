"""Log-probabilities of prompts, for requests that want them, piece by piece as the prompt is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from llmk.engine.device.transfer import to_device
from llmk.engine.sampling.prompt_rows import PromptRows, Rows
from llmk.engine.sampling.sampler import Scores, read_scores, scores_to_host
from llmk.engine.wire.request import TokenLogprobs
from llmk.engine.wire.step import NewRequest, ScoredTokens, Work

ROWS = 128
"""Rows of logits that are there at a time: with 256k tokens in float32, 128 MiB."""


@dataclass(slots=True)
class PendingLogprobs:
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


class PromptLogprobs(PromptRows):
    """Scores prompts. ``logits`` is the model's, ``logprobs`` the op of that name."""

    def __init__(self, logits: Callable[[Tensor], Tensor], logprobs: Callable[[Tensor, Tensor, int], Scores]) -> None:
        super().__init__(_scoring)
        self._logits = logits
        self._logprobs = logprobs

    def __call__(self, hidden: Tensor, work: Sequence[Work]) -> list[PendingLogprobs]:
        """Scores what ``work`` computes of prompts. ``hidden`` is ``[tokens, hidden]``, in the order of the work."""
        return [self._score(rows) for rows in self.of(hidden, work)]

    def _score(self, rows: Rows) -> PendingLogprobs:
        start, num_top = rows.start + 1, rows.prompt.num_top
        token_ids = list(rows.prompt.token_ids[start : start + rows.hidden.shape[0]])
        wanted = to_device(token_ids, rows.hidden.device)
        scores = [
            scores_to_host(self._logprobs(self._logits(part), targets, num_top))
            for part, targets in zip(rows.hidden.split(ROWS), wanted.split(ROWS), strict=True)
        ]
        return PendingLogprobs(rows.work, start, token_ids, num_top, scores)


def _scoring(request: NewRequest) -> range:
    """The tokens whose rows score those that follow them."""
    last = request.num_prompt_tokens - 1
    return range(last if request.params.prompt_logprobs is None else request.num_delivered - 1, last)

"""Which rows of the steps' hidden states belong to prompts that something is wanted of, and those states themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from llmk.engine.device.transfer import to_host
from llmk.engine.wire.request import HiddenRows, Returns
from llmk.engine.wire.step import NewRequest, Work


@dataclass(slots=True)
class Prompt:
    """A prompt whose tokens in ``wanted`` have hidden states to be returned, pooled or scored. ``num_top`` is how many
    most likely tokens are returned at each position. ``total`` is the sum, float32 ``[hidden]``, of the hidden states
    so far, where their mean is returned."""

    token_ids: Sequence[int]
    wanted: range
    num_top: int
    returns: Returns
    total: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Rows:
    """Final hidden states ``[rows, hidden]`` of a prompt's tokens from number ``start`` on, which work item ``work``
    computed."""

    work: int
    start: int
    hidden: Tensor
    prompt: Prompt


class PromptRows:
    """Follows prompts through the steps. ``wanted`` says of which tokens of a request's prompt the rows are."""

    def __init__(self, wanted: Callable[[NewRequest], range]) -> None:
        self._wanted = wanted
        self._prompts: dict[int, Prompt] = {}

    def update(self, freed: Sequence[int], new: Sequence[NewRequest]) -> None:
        """Forgets requests that left the batch, then takes note of those that entered it."""
        for slot in (*freed, *(request.slot for request in new)) if self._prompts else ():
            self._prompts.pop(slot, None)
        for request in new:
            if wanted := self._wanted(request):
                prompt = request.token_ids[: request.num_prompt_tokens]
                num_top = request.params.prompt_logprobs or 0
                self._prompts[request.slot] = Prompt(prompt, wanted, num_top, request.returns)

    def follows(self, work: Sequence[Work]) -> bool:
        """Whether any of a step's work is of a prompt whose rows are wanted."""
        return bool(self._prompts) and any(item.slot in self._prompts for item in work)

    def of(self, hidden: Tensor, work: Sequence[Work]) -> Iterator[Rows]:
        """The rows among ``hidden`` (``[tokens, hidden]``, in the order of the work)."""
        row = 0
        for number, item in enumerate(work if self._prompts else ()):
            prompt = self._prompts.get(item.slot)
            if prompt is not None:
                first, end = item.before, item.before + item.num_tokens
                start, stop = max(first, prompt.wanted.start), min(end, prompt.wanted.stop)
                if start < stop:
                    yield Rows(number, start, hidden[row + start - first : row + stop - first], prompt)
                if stop == prompt.wanted.stop:
                    del self._prompts[item.slot]
            row += item.num_tokens


@dataclass(slots=True)
class PendingCopy:
    """Hidden states on their way to the host."""

    work: int
    start: int
    rows: Tensor

    def result(self) -> HiddenRows:
        """Reads them, once they have arrived."""
        data = self.rows.contiguous().view(torch.uint8).numpy().tobytes()
        return HiddenRows(self.start, self.rows.shape[0], str(self.rows.dtype).removeprefix("torch."), data)


class HiddenReader(PromptRows):
    """Copies hidden states to the host, or what is made of them, for requests that want them. ``logits`` is the
    model's."""

    def __init__(self, logits: Callable[[Tensor], Tensor]) -> None:
        super().__init__(_returned)
        self._logits = logits

    def __call__(self, hidden: Tensor, work: Sequence[Work]) -> list[PendingCopy]:
        """What ``work`` computes of them. ``hidden`` is ``[tokens, hidden]``, in the order of the work."""
        return [copy for rows in self.of(hidden, work) if (copy := self._copy(rows)) is not None]

    def _copy(self, rows: Rows) -> PendingCopy | None:
        prompt, found = rows.prompt, rows.hidden
        if prompt.returns == "labels":
            found = self._logits(found).float()
        elif prompt.returns == "mean_hidden":
            total = found.sum(0, dtype=torch.float32)
            prompt.total = total if prompt.total is None else prompt.total + total
            if rows.start + found.shape[0] < prompt.wanted.stop:
                return None
            return PendingCopy(rows.work, prompt.wanted.stop - 1, to_host((prompt.total / len(prompt.wanted))[None]))
        return PendingCopy(rows.work, rows.start, to_host(found))


def _returned(request: NewRequest) -> range:
    end = request.num_prompt_tokens
    starts = {"hidden": request.num_delivered, "mean_hidden": 0, "last_hidden": end - 1, "labels": end - 1}
    return range(starts.get(request.returns, end), end)

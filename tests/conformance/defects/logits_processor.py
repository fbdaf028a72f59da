"""A logits processor that pushes towards a token some steps above the last one, and ways to get it wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from defects import Defect
from llmk.api import LogitsBatch, LogitsRequest, LogitsRows, RequestError

EXAMPLES = ({"step": 3}, {"step": 7, "push": 2.5}, {"step": 1})


class Good:
    """``step`` (a whole number from 0) and ``push`` (how hard, 5 unless it is given), kept on the device by slot."""

    def __init__(self, batch: LogitsBatch) -> None:
        self._tokens = batch.tokens
        slots = batch.tokens.shape[0]
        self._step = torch.zeros(slots, dtype=torch.int64, device=batch.tokens.device)
        self._push = torch.zeros(slots, device=batch.tokens.device)

    def enter(self, slot: int, request: LogitsRequest) -> None:
        step, push = self._read(request.parameters)
        self._step[slot] = step
        self._push[slot] = push

    def leave(self, slot: int) -> None:
        self._step[slot] = 0

    def apply(self, logits: Tensor, rows: LogitsRows) -> Tensor:
        wanted = self._wanted(rows).remainder(logits.shape[1])[:, None]
        return logits.scatter_add(1, wanted, self._push[rows.index][:, None])

    def _wanted(self, rows: LogitsRows) -> Tensor:
        last: Tensor = self._tokens[rows.index, rows.lengths - 1].long()
        return last + self._step[rows.index]

    def _read(self, parameters: Mapping[str, Any]) -> tuple[int, float]:
        step, push = parameters.get("step"), parameters.get("push", 5.0)
        if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < 2**31:
            raise RequestError("step must be a whole number from 0 to 2147483647", param="logits_processors")
        if not isinstance(push, int | float) or not -100 <= push <= 100:
            raise RequestError("push must be from -100 to 100", param="logits_processors")
        return step, push


class FirstRow(Good):
    """Takes the parameters of the first row for all."""

    def _wanted(self, rows: LogitsRows) -> Tensor:
        return super()._wanted(rows) - self._step[rows.index] + self._step[rows.index[:1]]


class BySlot(Good):
    """Takes the slot for the row of the logits."""

    def apply(self, logits: Tensor, rows: LogitsRows) -> Tensor:
        wanted = self._wanted(rows).remainder(logits.shape[1])
        for row, slot in enumerate(rows.slots):
            logits[slot % logits.shape[0], wanted[row]] += self._push[slot]
        return logits


class BatchMean(Good):
    """Normalises by all rows at once."""

    def apply(self, logits: Tensor, rows: LogitsRows) -> Tensor:
        out = super().apply(logits, rows)
        return out - out.mean()


class Growing(Good):
    """What the last request in a slot had is added to."""

    def enter(self, slot: int, request: LogitsRequest) -> None:
        step, push = self._read(request.parameters)
        self._step[slot] += step
        self._push[slot] = push

    def leave(self, slot: int) -> None:
        pass


class OwnCount(Good):
    """Counts its own calls where it could ask how long the request is."""

    def __init__(self, batch: LogitsBatch) -> None:
        super().__init__(batch)
        self._calls = torch.zeros_like(self._step)

    def enter(self, slot: int, request: LogitsRequest) -> None:
        super().enter(slot, request)
        self._calls[slot] = 0

    def apply(self, logits: Tensor, rows: LogitsRows) -> Tensor:
        self._calls[rows.index] += 1
        return super().apply(logits, rows)

    def _wanted(self, rows: LogitsRows) -> Tensor:
        return super()._wanted(rows) + self._calls[rows.index]


class Keeping(Good):
    """Keeps requests in a list for later."""

    def __init__(self, batch: LogitsBatch) -> None:
        super().__init__(batch)
        self._requests: list[LogitsRequest] = []

    def enter(self, slot: int, request: LogitsRequest) -> None:
        self._requests.append(request)
        super().enter(slot, request)


class Wide(Good):
    """Returns float64."""

    def apply(self, logits: Tensor, rows: LogitsRows) -> Tensor:
        return super().apply(logits, rows).double()


class Unread(Good):
    """Takes parameters as they come."""

    def _read(self, parameters: Mapping[str, Any]) -> tuple[int, float]:
        return parameters["step"], parameters.get("push", 5.0)


class Scribbling(Good):
    """Marks the last token as seen."""

    def apply(self, logits: Tensor, rows: LogitsRows) -> Tensor:
        out = super().apply(logits, rows)
        self._tokens[rows.index, rows.lengths - 1] = 0
        return out


class Waiting(Good):
    """Asks the device whether there is anything to do."""

    def apply(self, logits: Tensor, rows: LogitsRows) -> Tensor:
        return super().apply(logits, rows) if bool(self._push[rows.index].any()) else logits


class Idle(Good):
    """Forgets to return what it made."""

    def apply(self, logits: Tensor, rows: LogitsRows) -> Tensor:
        super().apply(logits, rows)
        return logits


class Overreaching(Good):
    """Changes what lies behind its rows."""

    def apply(self, logits: Tensor, rows: LogitsRows) -> Tensor:
        whole = logits._base if logits._base is not None else logits
        whole += 1e-3
        return super().apply(logits, rows)


class Longest(Good):
    """Looks at the longest row of each slot."""

    def _wanted(self, rows: LogitsRows) -> Tensor:
        lengths = torch.zeros_like(self._step).scatter_reduce(0, rows.index, rows.lengths, "amax")
        last: Tensor = self._tokens[rows.index, lengths[rows.index] - 1].long()
        return last + self._step[rows.index]


class OfVocabulary(Good):
    """Looks each token up, as if all were of the vocabulary."""

    def apply(self, logits: Tensor, rows: LogitsRows) -> Tensor:
        torch.zeros(logits.shape[1])[self._tokens[rows.index, rows.lengths - 1].long()]
        return super().apply(logits, rows)


class Logging(Good):
    """Keeps the names of requests."""

    def __init__(self, batch: LogitsBatch) -> None:
        super().__init__(batch)
        self._names: list[str] = []

    def enter(self, slot: int, request: LogitsRequest) -> None:
        self._names.append(request.id)
        super().enter(slot, request)


class Popping(Good):
    """Takes the parameters out of the request."""

    def _read(self, parameters: Mapping[str, Any]) -> tuple[int, float]:
        read = super()._read(parameters)
        parameters.pop("push", None)  # type: ignore[attr-defined]
        return read


class Boundless(Good):
    """Takes a push that float32 can't hold."""

    def _read(self, parameters: Mapping[str, Any]) -> tuple[int, float]:
        push = parameters.get("push", 5.0)
        step, least = super()._read({**parameters, "push": min(push, 0) if isinstance(push, float | int) else push})
        return step, least or push


class WaitingOnce(Good):
    """Asks the device about requests with a parameter of their own."""

    def apply(self, logits: Tensor, rows: LogitsRows) -> Tensor:
        if any(self._hard[slot] for slot in rows.slots):
            rows.lengths.tolist()
        return super().apply(logits, rows)

    def enter(self, slot: int, request: LogitsRequest) -> None:
        super().enter(slot, request)
        self.__dict__.setdefault("_hard", [False] * 512)[slot] = request.parameters.get("push") == -100


class RowByRow(Good):
    def apply(self, logits: Tensor, rows: LogitsRows) -> Tensor:
        places = [slice(at, at + 1) for at in range(len(logits))]
        apply = super().apply
        return torch.cat(
            [apply(logits[at], LogitsRows(rows.slots[at], rows.index[at], rows.lengths[at])) for at in places]
        )


DEFECTS = (
    Defect("row-by-row", "rows are processed one by one", RowByRow, "rows of a step are computed together"),
    Defect("longest", "drafts are seen that come later", Longest, "a row sees the drafts"),
    Defect("of-vocabulary", "embeddings in place of tokens raise", OfVocabulary, "may have embeddings"),
    Defect("logging", "names of requests are kept for ever", Logging, "is freed with it"),
    Defect("popping", "the request's parameters are changed", Popping, "a preempted request"),
    Defect("boundless", "a parameter makes logits infinite", Boundless, "odd parameters"),
    Defect("waiting-once", "the host waits for some parameters", WaitingOnce, "apply does not synchronize"),
    Defect("first-row", "all rows get the first one's parameters", FirstRow, "a row depends only on its request"),
    Defect("by-slot", "rows are addressed by slot", BySlot, "a row depends only on its request"),
    Defect("batch-mean", "rows are normalised together", BatchMean, "a row depends only on its request"),
    Defect("growing", "a slot isn't reset", Growing, "a reused slot"),
    Defect("own-count", "state is lost in a preemption", OwnCount, "a preempted request"),
    Defect("keeping", "requests are held for ever", Keeping, "is freed with it"),
    Defect("wide", "another dtype is returned", Wide, "float32 of the same shape"),
    Defect("unread", "bad parameters raise KeyError or TypeError", Unread, "odd parameters"),
    Defect("scribbling", "the batch's tokens are written to", Scribbling, "the batch's tokens stay"),
    Defect("waiting", "the host waits for the device in each step", Waiting, "apply does not synchronize"),
    Defect("idle", "nothing changes", Idle, "it changes logits"),
    Defect("overreaching", "rows of others are changed", Overreaching, "rows that it isn't given"),
)

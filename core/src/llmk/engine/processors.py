"""Logits processors of plugins: bound to the batch when a request first names one, and kept from harming others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from llmk.api import LlmkError, LogitsBatch, LogitsProcessor, LogitsRequest, LogitsRows
from llmk.engine.transfer import to_device

if TYPE_CHECKING:
    from llmk.engine.step import NewRequest

logger = logging.getLogger(__name__)

Problem = tuple[str, ...]
"""Message and code of an error, and the field at fault where there is one."""


class Processors:
    """The processors of one batch. ``load`` maps ids to functions that import a processor's class."""

    def __init__(self, load: Mapping[str, Callable[[], type[LogitsProcessor]]], vocab_size: int) -> None:
        self._load = load
        self._vocab_size = vocab_size
        self._bound: dict[str, LogitsProcessor] = {}
        self._users: dict[str, set[int]] = {}
        self._failed: dict[int, Problem] = {}
        self._request_ids: dict[int, str] = {}
        """For the log, of slots that name a processor."""
        self._shares: tuple[list[int], list[tuple[str, Sequence[int], Tensor, Tensor]]] | None = None
        """Slots of the last step, and which of them each processor has; good until the batch changes."""

    @property
    def active(self) -> bool:
        """Whether any request of the batch names a processor."""
        return bool(self._users or self._failed)

    def update(self, freed: Sequence[int], new: Sequence[NewRequest], tokens: Tensor) -> None:
        """Lets requests go, then lets others in. ``tokens`` are the batch's."""
        self._shares = None
        for slot in (*freed, *(request.slot for request in new)) if self.active else ():
            self._leave(slot)  # a slot that is filled was not freed before if the step that should have done it failed
        for request in new:
            if request.params.logits_processors:
                self._request_ids[request.slot] = request.request_id
            for id, parameters in request.params.logits_processors.items():
                entry = LogitsRequest(request.id, request.token_ids, request.num_prompt_tokens, parameters)
                try:
                    if id not in self._bound:
                        self._bound[id] = self._load[id]()(LogitsBatch(tokens, self._vocab_size))
                    self._bound[id].enter(request.slot, entry)
                    self._users.setdefault(id, set()).add(request.slot)
                except Exception as error:
                    self._failed[request.slot] = self._problem(id, error, [request.slot])

    def apply(self, logits: Tensor, slots: Sequence[int], rows: Tensor, lengths: Tensor) -> dict[int, Problem]:
        """Changes ``logits`` (float32 ``[samples, vocab]``) in place, row by row of ``slots`` (int64 on the device:
        ``rows``); ``lengths`` is int64 ``[slots]``. Returns what went wrong, by slot."""
        if self._shares is None or self._shares[0] != slots:
            self._shares = list(slots), list(self._share_out(slots, rows))
        failed = {slot: problem for slot, problem in self._failed.items() if slot in slots}
        for id, own_slots, at, own in self._shares[1]:
            chosen = logits[at]
            try:
                out = self._bound[id].apply(chosen, LogitsRows(own_slots, own, lengths[own]))
                if out.shape != chosen.shape or out.dtype != chosen.dtype:
                    raise TypeError(f"apply returned {out.dtype} {tuple(out.shape)} for {tuple(chosen.shape)}")
                logits[at] = out
            except Exception as error:
                failed |= dict.fromkeys(own_slots, self._problem(id, error, own_slots))
        return failed

    def _share_out(self, slots: Sequence[int], rows: Tensor) -> Iterator[tuple[str, Sequence[int], Tensor, Tensor]]:
        """For each processor: its slots, their rows of the logits, and the slots on the device."""
        for id, users in self._users.items():
            at = [row for row, slot in enumerate(slots) if slot in users]
            if at:
                index = to_device(at, rows.device)
                yield id, tuple(slots[row] for row in at), index, rows[index]

    def _leave(self, slot: int) -> None:
        self._failed.pop(slot, None)
        request_id = self._request_ids.pop(slot, "")
        for id in [id for id, users in self._users.items() if slot in users]:
            self._users[id].discard(slot)
            if not self._users[id]:
                del self._users[id]
            try:
                self._bound[id].leave(slot)
            except Exception:
                what = "the logits processor %s failed to let a request go"
                logger.exception(what, id, extra={"request_id": request_id})

    def _problem(self, id: str, error: Exception, slots: Sequence[int]) -> Problem:
        if not isinstance(error, LlmkError):
            request_ids = list(dict.fromkeys(self._request_ids[slot] for slot in slots))
            logger.error("the logits processor %s failed", id, exc_info=error, extra={"request_ids": request_ids})
        code = error.code if isinstance(error, LlmkError) else LlmkError.code
        param = getattr(error, "param", None) or ""
        return f"the logits processor {id} failed: {type(error).__name__}: {error}", code, str(param)

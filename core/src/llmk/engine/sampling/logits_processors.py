"""Logits processors of plugins: bound to the batch when a request first names one, and kept from harming others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from llmk.api import LlmkError, LogitsBatch, LogitsProcessor, LogitsRequest, LogitsRows, PluginError
from llmk.engine.device.transfer import to_device
from llmk.engine.sampling.finite_check import Problem, after_processor
from llmk.engine.wire.plugin_calls import LOGITS_PROCESSOR, Call, Culprit, is_interrupt

if TYPE_CHECKING:
    from llmk.engine.device.sample_rows import SampleRows
    from llmk.engine.wire.step import NewRequest

logger = logging.getLogger(__name__)


class Share(NamedTuple):
    """The rows of a step that a processor has: by number, on the host and on the device, and their slots likewise."""

    id: str
    rows: Sequence[int]
    at: Tensor
    slots: Sequence[int]
    slots_at: Tensor


class LogitsProcessors:
    """The processors of one batch. ``load`` maps ids to functions that import a processor's class, ``wheels`` to the
    wheel that each is of.

    Any exception of a processor, SystemExit included, fails the requests that it was called for. Calls are marked, so
    that one that does not return, or ends the process, is known too (:mod:`llmk.engine.wire.plugin_calls`).
    """

    def __init__(
        self,
        load: Mapping[str, Callable[[], type[LogitsProcessor]]],
        vocab_size: int,
        wheels: Mapping[str, str] | None = None,
    ) -> None:
        self._load = load
        self._wheels = wheels or {}
        self._vocab_size = vocab_size
        self._bound: dict[str, LogitsProcessor] = {}
        self._users: dict[str, set[int]] = {}
        self._failed: dict[int, Problem] = {}
        self._request_ids: dict[int, str] = {}
        """For the log, of slots that name a processor."""
        self._shares: tuple[list[int], list[Share]] | None = None
        """Slots of the last step's rows, and which of the rows each processor has; good until the batch changes."""

    @property
    def active(self) -> bool:
        """Whether any request of the batch names a processor."""
        return bool(self._users or self._failed)

    def update(self, freed: Sequence[int], new: Sequence[NewRequest], tokens: Tensor) -> None:
        """Removes ``freed`` requests, then adds ``new`` ones. ``tokens`` are the batch's."""
        self._shares = None
        for slot in (*freed, *(request.slot for request in new)) if self.active else ():
            self._leave(slot)  # a slot that is filled was not freed before if the step that should have done it failed
        for request in new:
            if request.params.logits_processors:
                self._request_ids[request.slot] = request.request_id
            for id, parameters in request.params.logits_processors.items():
                entry = LogitsRequest(request.id, request.token_ids, request.num_prompt_tokens, parameters)
                try:
                    with self._call(id, request.id):
                        if id not in self._bound:
                            self._bound[id] = self._make(id, tokens)
                        self._bound[id].enter(request.slot, entry)
                    self._users.setdefault(id, set()).add(request.slot)
                except BaseException as error:
                    self._failed[request.slot] = self._problem(id, error, [request.slot])

    def apply(self, logits: Tensor, state: Tensor, rows: SampleRows) -> tuple[dict[int, Problem], list[str]]:
        """Changes ``logits`` (float32 ``[samples, vocab]``) of ``rows`` in place, and each row's ``state``
        (:mod:`llmk.engine.sampling.finite_check`). Returns what went wrong, by row, and what the processors are called
        that ``state`` numbers."""
        if self._shares is None or self._shares[0] != rows.slots:
            self._shares = list(rows.slots), list(self._share_out(rows))
        failed = {
            row: self._failed[slot]
            for row, slot in enumerate(rows.slots if self._failed else ())
            if slot in self._failed
        }
        for number, (id, own_rows, at, own_slots, slots_at) in enumerate(self._shares[1]):
            chosen = logits[at]
            try:
                with self._call(id):
                    out = self._bound[id].apply(chosen, LogitsRows(own_slots, slots_at, rows.known[at]))
                if out.shape != chosen.shape or out.dtype != chosen.dtype:
                    raise TypeError(f"apply returned {out.dtype} {tuple(out.shape)} for {tuple(chosen.shape)}")
                logits[at] = out
                state[at] = after_processor(state[at], out, number)
            except BaseException as error:
                failed |= dict.fromkeys(own_rows, self._problem(id, error, own_slots))
        return failed, [str(self._culprit(share.id)) for share in self._shares[1]]

    def _make(self, id: str, tokens: Tensor) -> LogitsProcessor:
        return self._load[id]()(LogitsBatch(tokens, self._vocab_size))

    def _culprit(self, id: str) -> Culprit:
        return Culprit(LOGITS_PROCESSOR, id, self._wheels.get(id, ""))

    def _call(self, id: str, request: str = "") -> Call:
        return Call(LOGITS_PROCESSOR, id, self._wheels.get(id, ""), request)

    def _share_out(self, rows: SampleRows) -> Iterator[Share]:
        for id, users in self._users.items():
            own = [row for row, slot in enumerate(rows.slots) if slot in users]
            if own:
                at = to_device(own, rows.index.device)
                yield Share(id, own, at, tuple(rows.slots[row] for row in own), rows.index[at])

    def _leave(self, slot: int) -> None:
        self._failed.pop(slot, None)
        request_id = self._request_ids.pop(slot, "")
        for id in [id for id, users in self._users.items() if slot in users]:
            self._users[id].discard(slot)
            if not self._users[id]:
                del self._users[id]
            try:
                with self._call(id):
                    self._bound[id].leave(slot)
            except BaseException as error:
                if is_interrupt(error):
                    raise
                what = "%s failed to let a request go"
                logger.exception(what, self._culprit(id), extra={"request_id": request_id})

    def _problem(self, id: str, error: BaseException, slots: Sequence[int]) -> Problem:
        if is_interrupt(error):
            raise error
        if not isinstance(error, LlmkError):
            request_ids = list(dict.fromkeys(self._request_ids[slot] for slot in slots))
            logger.error("%s failed", self._culprit(id), exc_info=error, extra={"request_ids": request_ids})
        code = error.code if isinstance(error, LlmkError) else PluginError.code
        param = str(getattr(error, "param", None) or "")
        return f"{self._culprit(id)} failed: {type(error).__name__}: {error}", code, param

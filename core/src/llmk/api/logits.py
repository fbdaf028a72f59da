"""The contract of logits processors: plugins that change what a request's tokens are drawn from.

One instance serves every request of the batch that names its spec. It keeps what it must know of each by slot, and
works on all of them at once: no Python per token, and nothing that waits for the device.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class LogitsBatch:
    """The batch that a processor is bound to. ``tokens`` (int32 ``[slots, max_len + 1]``, on the device) has prompt and
    output of each request, sampled tokens included as soon as they are; it must not be written to."""

    tokens: Tensor
    vocab_size: int


@dataclass(frozen=True, slots=True)
class LogitsRequest:
    """A request that enters the batch. ``parameters`` are the request's own for this processor. ``token_ids`` are all
    tokens known so far: the prompt's, and output where the request comes back after it was preempted."""

    id: str
    token_ids: Sequence[int]
    num_prompt_tokens: int
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogitsRows:
    """Whose logits are to be changed: the rows' slots, the same as int64 ``[rows]`` on the device, and how many of each
    one's tokens are known (int64 ``[rows]``, on the device)."""

    slots: Sequence[int]
    index: Tensor
    lengths: Tensor


class LogitsProcessor(Protocol):
    """Changes logits of the requests that name it.

    What :meth:`enter` raises fails that request, a :class:`~llmk.api.RequestError` as the client's mistake; what
    :meth:`apply` raises fails the requests whose rows it was given. So do logits that are NaN or positive infinity, or
    that leave no token, and a call that does not return in ``engine.plugin_seconds``. Other requests never notice. A
    row's logits depend on its own request alone: its tokens and parameters, not its slot, its neighbours, or who was in
    the slot before.
    """

    def __init__(self, batch: LogitsBatch) -> None: ...

    @abstractmethod
    def enter(self, slot: int, request: LogitsRequest) -> None:
        """A request takes ``slot``: a new one, or one that was preempted and goes on as if it had not been.

        Raises:
            RequestError: for parameters that are not right. Nothing has checked them before, so that they may be any
                JSON; what is taken here must not make :meth:`apply` raise.
        """
        ...

    @abstractmethod
    def leave(self, slot: int) -> None:
        """The request in ``slot`` has ended, or was preempted: what is kept of it must go. Not called where
        :meth:`enter` raised."""
        ...

    @abstractmethod
    def apply(self, logits: Tensor, rows: LogitsRows) -> Tensor:
        """New logits for ``logits`` (float32 ``[rows, vocab]``, which may be changed), after penalties and before
        biases, bans and temperature."""
        ...

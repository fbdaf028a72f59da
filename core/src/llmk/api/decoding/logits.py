"""The contract of logits processors: plugins that change a request's logits before sampling.

One instance processes all requests of the batch that name its spec. It keeps per-request state by batch slot and works
on all rows at once: no Python code per token, and no synchronization with the device.
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
    """The batch that a processor is bound to. ``tokens`` (int32 ``[slots, max_len + 1]``, on the device) has the prompt
    and output tokens of each request, including tokens that were just sampled. It must not be changed. Positions of a
    prompt that have an embedding in place of a token have the id ``vocab_size``."""

    tokens: Tensor
    vocab_size: int


@dataclass(frozen=True, slots=True)
class LogitsRequest:
    """A request that enters the batch. ``parameters`` are those that the request has for this processor, which must not
    be changed: they may be the same object when it resumes, and for its other samples. ``token_ids`` are all its tokens
    so far: the prompt, and the output if the request resumes after preemption. Embeddings in place of tokens have the
    id :attr:`LogitsBatch.vocab_size`; the last of a prompt may be one, too."""

    id: str
    token_ids: Sequence[int]
    num_prompt_tokens: int
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogitsRows:
    """The rows to process: ``slots`` are their batch slots, ``index`` the same as int64 ``[rows]`` on the device, and
    ``lengths`` the number of tokens of the request that come before what the row samples (int64 ``[rows]``, on the
    device).

    A slot has several rows, with different lengths, where drafted tokens are verified: each row samples what would
    follow the tokens before it, drafts included.
    """

    slots: Sequence[int]
    index: Tensor
    lengths: Tensor


class LogitsProcessor(Protocol):
    """Changes the logits of the requests that name it.

    An exception of :meth:`enter` fails that request; a :class:`~llmk.api.RequestError` is reported as the client's
    mistake. An exception of :meth:`apply` fails the requests of the rows that were passed. The same holds if the result
    has NaN or positive infinity, if it allows no token in a row, and if a call does not return within
    ``engine.plugin_seconds``. Other requests are not affected. A row's result may depend only on the tokens and
    parameters of its own request: not on its slot, on other rows, or on an earlier request of the slot.
    """

    def __init__(self, batch: LogitsBatch) -> None: ...

    @abstractmethod
    def enter(self, slot: int, request: LogitsRequest) -> None:
        """A request enters the batch at ``slot``: a new one, or one that resumes after preemption, with equal results.

        Raises:
            RequestError: for invalid parameters. They were not checked before and may be any JSON; parameters that are
                accepted here must not make :meth:`apply` raise.
        """
        ...

    @abstractmethod
    def leave(self, slot: int) -> None:
        """The request in ``slot`` finished or was preempted: its state must be dropped. Not called if :meth:`enter`
        raised."""
        ...

    @abstractmethod
    def apply(self, logits: Tensor, rows: LogitsRows) -> Tensor:
        """Returns the new logits for ``logits`` (float32 ``[rows, vocab]``, which may be changed in place). Called
        after penalties, and before logit biases, banned tokens and temperature. Rows are processed together: the
        number of operators doesn't grow with them."""
        ...

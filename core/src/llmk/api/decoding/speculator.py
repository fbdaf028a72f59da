"""The contracts of speculators: plugins that draft a request's next tokens, for the model to verify several in one
step.

Drafts never change what a request is answered. The engine samples each drafted position as it would without drafts, by
its own seed and position, and accepts drafts while they equal what was sampled. A speculator only decides how often
more than one token comes out of a step; how many drafts it is worth to verify is the engine's decision.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class SpeculatorContext:
    """The constructor argument of a speculator. ``options`` are its own, from the config; ``max_drafts`` is the largest
    number of drafts per request and step, ``max_len`` the largest number of tokens of a request."""

    vocab_size: int
    max_drafts: int
    max_len: int
    options: Mapping[str, Any] = field(default_factory=dict)


class Speculator(Protocol):
    """Drafts on the host, between steps, so its time delays every step.

    A request gets drafts from it only where the host knows all of the request's tokens: no step in flight computes any.

    If a call raises, the speculator is not called again and requests go on without drafts. The same holds where it
    returns something other than token ids.
    """

    def __init__(self, context: SpeculatorContext) -> None: ...

    @abstractmethod
    def propose(self, request: str, tokens: Sequence[int], most: int) -> Sequence[int]:
        """Drafts for the request of that id: the tokens that may follow ``tokens``, in order, at most ``most`` (1 or
        more) and each in ``range(vocab_size)``. An empty result is good: nothing is verified then, at no cost.

        ``tokens`` are the prompt and all output; those that a prompt gives as embeddings have the id ``vocab_size``.
        They must not be changed. They only grow from call to call of one request, by any number or by none, where a
        step was not carried out, so that a speculator may keep what it has made of the tokens that it has seen; not
        the sequence itself, which is the engine's and grows in place.
        """
        ...

    def leave(self, request: str) -> None:
        """The request of that id ended: what was kept of it must be dropped. Called once for each request that
        :meth:`propose` was called for. A preempted request has not ended."""
        return


class DeviceSpeculator(Protocol):
    """Drafts on the device, as a part of the step that verifies the drafts, so that the next step can be issued before
    this one's tokens are known to the host.

    :meth:`propose` may be captured as a graph and replayed: it never synchronizes, makes the same launches for equal
    shapes, and keeps no state between calls but what depends on its arguments alone.
    """

    def __init__(self, context: SpeculatorContext) -> None: ...

    @abstractmethod
    def propose(self, tokens: Tensor, known: Tensor, slots: Tensor, width: int) -> Tensor:
        """Drafts for requests, int64 ``[requests, width]``, in a tensor of their own; those that a request has no use
        for are ignored.

        An entry that is not in ``range(vocab_size)`` says that nothing is drafted there.

        Args:
            tokens: int32 ``[slots, max_len + 1]``, the prompt and output of every request of the batch, by slot. What
                stands behind a request's known tokens is arbitrary. Must not be changed.
            known: int64 ``[requests]``, how many tokens of each request are known, 1 to ``max_len``: the first draft
                is for this index. Of padding, any number up to ``max_len``, such as 0, so clamp what is made an index
                of it.
            slots: int64 ``[requests]``, each request's row of ``tokens``, in any order; -1 is padding, whose drafts are
                ignored. Recorded steps have padding anywhere, also nothing else.
            width: drafts per request, 1 or more, at most :attr:`SpeculatorContext.max_drafts`.
        """
        ...


class DraftHeads(Protocol):
    """The heads of a model that predict further tokens, each with a K/V cache of its own, as the engine gives them to a
    :class:`HeadSpeculator`.

    Attributes:
        count: how many there are. Head ``k`` maps a hidden state at position ``i``, and the token at ``i + 1 + k``, to
            one that predicts the token at ``i + 2 + k``.
    """

    count: int

    @abstractmethod
    def __call__(self, head: int, hidden: Tensor, following: Tensor, rows: Any) -> Tensor:
        """Runs head number ``head``; its cache then has what it computed. Returns hidden states ``[rows, hidden]``.

        Args:
            hidden: ``[rows, hidden]``, by the model or the head before.
            following: int64 ``[rows]``, the token that follows for each.
            rows: where they stand: what :meth:`HeadSpeculator.follow` was given, or :meth:`rows` returned.
        """
        ...

    @abstractmethod
    def most_likely(self, hidden: Tensor) -> Tensor:
        """The token that each of ``hidden`` (``[rows, hidden]``) predicts, int64 ``[rows]``."""
        ...

    @abstractmethod
    def rows(self, count: int, ahead: int) -> Any:
        """One row for each of the first ``count`` requests that drafts are proposed for, ``ahead`` positions behind the
        row that the request's hidden state belongs to: less than the drafts that are wanted of each of them."""
        ...


class HeadSpeculator(Protocol):
    """Drafts on the device by further heads of the model itself (``SpeculatorSpec.heads``), inside of the steps that
    verify the drafts.

    The engine keeps what it needs from step to step: a hidden state of each request, and the caches of the heads. So it
    never synchronizes, and keeps no state between calls.
    """

    def __init__(self, context: SpeculatorContext) -> None: ...

    @abstractmethod
    def follow(self, heads: DraftHeads, hidden: Tensor, following: Tensor, rows: Any) -> Tensor:
        """Called after each step, once it has sampled: fills the heads' caches. Returns ``[rows, hidden]``; of each
        request, :meth:`propose` gets the row of its last token but one, whose next token is known.

        Args:
            hidden: ``[rows, hidden]``, the model's final hidden states of all tokens of the step.
            following: int64 ``[rows, heads.count]``, the tokens at the next positions of each. Of a request's last
                rows, only the first is known; the others are arbitrary, as are all of those behind a rejected draft.
            rows: where they stand.
        """
        ...

    @abstractmethod
    def propose(self, heads: DraftHeads, hidden: Tensor, counts: Sequence[int]) -> Tensor:
        """Drafts for requests, int64 ``[requests, counts[0]]``. Those that a request has no use for are ignored. An
        entry that is not in ``range(vocab_size)`` says that nothing is drafted there.

        Args:
            hidden: ``[requests, hidden]``, what :meth:`follow` returned for each.
            counts: how many drafts are wanted of each request, 1 or more, the greatest first.
        """
        ...

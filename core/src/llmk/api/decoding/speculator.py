"""The contract of speculators: plugins that draft a request's next tokens, for the model to verify several in one step.

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
        They must not be changed. They only grow from call to call of one
        request, by any number, so that a speculator may keep what it has made of the tokens that it has seen.
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
        """Drafts for requests, int64 ``[requests, width]``; those that a request has no use for are ignored.

        An entry that is not in ``range(vocab_size)`` says that nothing is drafted there.

        Args:
            tokens: int32 ``[slots, max_len + 1]``, the prompt and output of every request of the batch, by slot. What
                stands behind a request's known tokens is arbitrary. Must not be changed.
            known: int64 ``[requests]``, how many tokens of each request are known: the first draft is for this index.
            slots: int64 ``[requests]``, each request's row of ``tokens``; -1 is padding, whose drafts are ignored.
            width: drafts per request, at most :attr:`SpeculatorContext.max_drafts`.
        """
        ...

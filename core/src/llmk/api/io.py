"""The contract of IO processors: requests of a shape of their own, turned into prompts, and what comes of those turned
into an answer.

A processor is made when a request first names it, once per front end. What it knows of a request stands in an object of
that request alone, which the core drops when the request is answered, has failed or was left by its client: there is
nothing to clean up. All calls come one at a time, from one thread that is not the event loop's.

What any of them raises fails the request and nothing else: a :class:`~llmk.api.RequestError` as the client's mistake
(400, with the field), anything else as the plugin's (500, with its name).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from llmk.api.checkpoint import Checkpoint
from llmk.api.facts import ModelFacts

if TYPE_CHECKING:
    from torch import Tensor

Returns = Literal["text", "logprobs", "hidden", "last_hidden"]
"""What is wanted of a prompt: generated text; or, without any, the log-probabilities of its tokens, the final hidden
states of all of them, or that of the last one."""


class IOTokenizer(Protocol):
    """The model's tokenizer. ``special_token_ids`` are tokens that stand for no text."""

    special_token_ids: frozenset[int]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The tokens of ``text``, between those that go around a text where ``add_special_tokens``."""
        ...

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of ``ids``."""
        ...

    def token_text(self, token_id: int) -> str:
        """A token's text inside a longer one."""
        ...


@dataclass(frozen=True, slots=True)
class IOContext:
    """What a processor is made with. ``options`` are the plugin's own section of the configuration, ``[plugin.NAME]``;
    ``model_name`` is what requests call the model."""

    checkpoint: Checkpoint
    facts: ModelFacts
    tokenizer: IOTokenizer
    model_name: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class IOPrompt:
    """A prompt, as text (which gets the tokenizer's special tokens) or token ids, with room for one more token in the
    model's context. ``param`` is the field of the body that it comes from, for errors. ``sampling`` are sampling
    parameters by their names in ``llmk.SamplingParams``, but for ``n``, for prompts that text is wanted of."""

    prompt: str | Sequence[int]
    returns: Returns
    param: str = ""
    sampling: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class IOOutput:
    """What came of the prompt of that index, a part of it or all.

    ``start`` is the position of the first of ``token_ids``, counted from the prompt's first token. These are the tokens
    that ``hidden`` (after the final norm; float32 ``[tokens, hidden_size]``, on the CPU) or ``logprobs`` (natural, of
    each token given those before it; ``None`` for the prompt's first) are of, or that were generated, ``text`` being
    what they add. Hidden states come in pieces, in order, each token's once.
    """

    prompt: int
    start: int
    token_ids: Sequence[int]
    hidden: Tensor | None = None
    logprobs: Sequence[float | None] = ()
    text: str = ""
    finish_reason: Literal["stop", "length"] | None = None
    """With the last output of the prompt: ``"length"`` where generation was cut off."""


class IORequest(Protocol):
    """One request, from its body to its answer. ``prompts`` (at least one) are read once."""

    prompts: Sequence[IOPrompt]

    @abstractmethod
    def take(self, output: IOOutput) -> None:
        """Takes what came next of one of the prompts, which run at the same time."""
        ...

    @abstractmethod
    def answer(self) -> Any:
        """The answer, as JSON's plain data; called once all prompts have ended."""
        ...


class IOProcessor(Protocol):
    """Serves requests of one shape."""

    def __init__(self, context: IOContext) -> None: ...

    @abstractmethod
    def open(self, body: Mapping[str, Any]) -> IORequest:
        """A request with this body, any JSON object. Raises :class:`~llmk.api.RequestError`, naming the field, for one
        that can't be served."""
        ...

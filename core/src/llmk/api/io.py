"""The contract of IO processors: plugins that convert request bodies of their own format into prompts, and the outputs
of those prompts into a response.

A processor is created when a request first names it, once per front-end process. The state of a request is in one
object, which the core drops when the request is answered, fails, or is cancelled by its client, so there is nothing to
clean up. Calls are made one at a time from a single thread, which is not the event loop's.

An exception of any method fails only that request: a :class:`~llmk.api.RequestError` as the client's mistake (400, with
the field), any other as the plugin's (500, with its name).
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
"""The requested output of a prompt: generated text; or, without generation, the log-probabilities of its tokens, the
final hidden states of all its tokens, or the final hidden state of its last token."""


class IOTokenizer(Protocol):
    """The model's tokenizer. ``special_token_ids`` are control tokens, which have no text."""

    special_token_ids: frozenset[int]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The tokens of ``text``; with ``add_special_tokens``, including those that the tokenizer adds around a
        text."""
        ...

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of ``ids``."""
        ...

    def token_text(self, token_id: int) -> str:
        """The text of a token within a longer text."""
        ...


@dataclass(frozen=True, slots=True)
class IOContext:
    """The constructor argument of an IO processor. ``options`` is the plugin's section of the configuration,
    ``[plugin.NAME]``, which must not be changed. It is empty where the configuration has none: options have
    defaults, or a processor raises a :class:`~llmk.api.ConfigError` that names the one it needs. ``model_name`` is the
    model's name in requests."""

    checkpoint: Checkpoint
    facts: ModelFacts
    tokenizer: IOTokenizer
    model_name: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class IOPrompt:
    """A prompt, as text (to which the tokenizer's special tokens are added) or token ids. It must be shorter than the
    model's context: the engine refuses a longer one, which a processor leaves whole unless the body asks otherwise.
    ``param`` is the field of the body that it is from, for errors, or the path to a value in it (``texts[1]``,
    ``texts.1``). ``sampling`` are sampling parameters by their names in ``llmk.SamplingParams``, except ``n``; only for
    ``returns="text"``."""

    prompt: str | Sequence[int]
    returns: Returns
    param: str = ""
    sampling: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class IOOutput:
    """A part of a prompt's output, or all of it. ``prompt`` is the prompt's index.

    ``token_ids`` are the tokens of this part, and ``start`` is the position of the first of them, counted from the
    prompt's first token. ``hidden`` are the tokens' hidden states (after the final norm; float32
    ``[tokens, hidden_size]``, on the CPU), ``logprobs`` their natural log-probabilities given the tokens before
    (``None`` for the prompt's first, ``-inf`` for what the model rules out). With ``returns="text"``, they are
    generated tokens, and ``text`` is their text. Hidden states and log-probabilities may arrive in several parts, in
    order, each token's once; text may arrive later than its tokens, in other pieces. ``token_ids`` and ``logprobs`` are
    the engine's, and must not be changed.
    """

    prompt: int
    start: int
    token_ids: Sequence[int]
    hidden: Tensor | None = None
    logprobs: Sequence[float | None] = ()
    text: str = ""
    finish_reason: Literal["stop", "length"] | None = None
    """Set in the last output of a prompt; ``"length"`` if generation was cut off."""


class IORequest(Protocol):
    """One request, from its body to its response. ``prompts`` (at least one) is read once."""

    prompts: Sequence[IOPrompt]

    @abstractmethod
    def take(self, output: IOOutput) -> None:
        """Called with the next output of one of the prompts, which run concurrently."""
        ...

    @abstractmethod
    def answer(self) -> Any:
        """The response as plain JSON data, without NaN and infinity. Called once, when all prompts have finished."""
        ...


class IOProcessor(Protocol):
    """Processes requests of one format."""

    def __init__(self, context: IOContext) -> None: ...

    @abstractmethod
    def open(self, body: Mapping[str, Any]) -> IORequest:
        """Creates the request for a body, which may be any JSON object. Raises :class:`~llmk.api.RequestError`, with
        the field, if the body is invalid."""
        ...

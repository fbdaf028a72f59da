"""The contract of API routes: HTTP APIs of other projects, over the same requests and the same events.

A route is three conversions. A worker process translates the body of a request to the body of one of llmk's own
routes (``translate``), which is then checked and prepared as every other. In the front end, the engine's typed events
are rendered in the API's format (``open``), or the plain result of a route without generated text is (``result``). An
error of any part is put in the API's format by ``error``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from llmk.api.parsers import Event

RouteKind = Literal["chat", "text", "tokenize", "embed", "info"]
"""What a request is translated to: the body of ``/v1/chat/completions``, ``/v1/completions``, ``/tokenize`` or
``/v1/embeddings``; ``"info"`` needs no engine."""


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """The start of a conversation that should stay in the cache for ``seconds``: its ``messages``, in the format of
    chat completions, with the request's tools before them. What it pins is a part of the request's own prompt, so
    messages that are not its start pin less."""

    messages: Sequence[Mapping[str, Any]]
    seconds: float


@dataclass(frozen=True, slots=True)
class TranslatedRequest:
    """A request in terms of llmk's own routes.

    Attributes:
        body: the body of the route of that ``kind``, without ``stream`` and ``stream_options``, which ``stream``
            replaces. Of the kind ``"info"``, a ``model`` is checked, and nothing else.
        options: plain JSON data, which ``open`` or ``result`` gets.
        thinking: whether the model should reason, or how much (``"low"``, ``"medium"``, ``"high"``), as far as its chat
            template has a switch for that. A template without one ignores it.
        fit_max_tokens: whether a limit of tokens that exceeds what the model's context has left is lowered, and is not
            an error.
        prefixes: of a chat, what should stay in the cache, shorter prefixes first. Pins are a wish: each tenant has a
            share of the cache for them, in which new ones replace old ones.
    """

    kind: RouteKind
    body: Mapping[str, Any]
    stream: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    thinking: bool | str | None = None
    fit_max_tokens: bool = False
    prefixes: Sequence[CachedPrefix] = ()


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What is known of a response before its first token. ``id`` is the request's id, 32 hex digits; ``created`` is in
    seconds since 1970; ``model`` is the name of the model or adapter."""

    id: str
    created: int
    model: str


class AnswerDelta(Protocol):
    """New output of one choice. The last delta of a choice has a ``finish_reason``."""

    @property
    def index(self) -> int:
        """The number of the choice."""
        ...

    @property
    def events(self) -> Sequence[Event]:
        """What the model wrote, parsed."""
        ...

    @property
    def finish_reason(self) -> str | None:
        """``"stop"``, ``"length"`` or ``"tool_calls"``; ``None``: the choice goes on."""
        ...

    @property
    def stop_reason(self) -> str | int | None:
        """The stop string or stop token that ended the choice, if one of the request's did."""
        ...


class TokenCounts(Protocol):
    """Tokens so far. Prompt tokens are known with the first delta."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt, with those that were cached."""
        ...

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that were cached."""
        ...

    @property
    def pinned_tokens(self) -> Mapping[float, int]:
        """Tokens of the prompt that were not cached and are pinned now, by the seconds for which they are."""
        ...

    @property
    def completion_tokens(self) -> int:
        """Generated tokens, with those of reasoning."""
        ...

    @property
    def reasoning_tokens(self) -> int:
        """Generated tokens of reasoning."""
        ...


@dataclass(frozen=True, slots=True)
class Frame:
    """One message of a streamed response: plain JSON data, and the name of the event, for server-sent events that have
    one."""

    data: Mapping[str, Any]
    event: str = ""


class AnswerRenderer(Protocol):
    """Renders one response. Exactly one of the two ways is used: frames, or a complete response, which is the fold of
    the same frames. It runs in the front end's event loop, so each call must take microseconds."""

    @abstractmethod
    def frames(self, delta: AnswerDelta, usage: TokenCounts) -> Iterable[Frame]:
        """The frames of one delta. Those that open the response come before those of the first."""
        ...

    @abstractmethod
    def last_frames(self, usage: TokenCounts) -> Iterable[Frame]:
        """The frames after the last delta."""
        ...

    @abstractmethod
    def add(self, delta: AnswerDelta, usage: TokenCounts) -> None:
        """Adds a delta to the complete response."""
        ...

    @abstractmethod
    def whole(self, usage: TokenCounts) -> Mapping[str, Any]:
        """The complete response, after all deltas were added."""
        ...


@dataclass(frozen=True, slots=True)
class ServedModelInfo:
    """The served model, for routes that describe it. ``created`` is in seconds since 1970; ``num_parameters`` and
    ``num_bytes`` are of its weights, 0 if not known; ``capabilities`` are some of ``"tools"``, ``"thinking"``,
    ``"embedding"``, ``"completion"``; ``config`` is the checkpoint's ``config.json``."""

    name: str
    adapters: Sequence[str]
    created: int
    version: str
    max_model_len: int
    chat_template: str
    capabilities: Sequence[str]
    config: Mapping[str, Any]
    num_parameters: int = 0
    num_bytes: int = 0


class ApiRoute(Protocol):
    """One route of an API. Created without arguments, in each process that needs it."""

    @abstractmethod
    def translate(self, body: Any, headers: Mapping[str, str]) -> TranslatedRequest:
        """Translates a request. ``body`` is decoded JSON of any kind, ``None`` without a body; names of ``headers`` are
        in lower case. Runs in a worker process, in time in proportion to the body. A ``model`` that the body names is
        that of the result, so that adapters are served.

        Raises:
            RequestError: if the request is invalid. ``param`` is the field of this API.
        """
        ...

    @abstractmethod
    def open(self, head: AnswerHead, options: Mapping[str, Any]) -> AnswerRenderer:
        """The renderer of a response of the kinds ``"chat"`` and ``"text"``."""
        ...

    @abstractmethod
    def result(self, result: Mapping[str, Any], options: Mapping[str, Any], model: ServedModelInfo) -> Any:
        """The response to other kinds: JSON data, or a ``str`` for plain text. ``result`` is what llmk's own route
        returns, empty for ``"info"``.

        Raises:
            RequestError: as ``translate`` does.
        """
        ...

    @abstractmethod
    def error(self, status: int, error: Mapping[str, Any]) -> Frame:
        """An error in the API's format; its event is the name that it has in a stream. ``error`` has ``message``,
        ``type``, ``param`` and ``code`` as in OpenAI's API, and ``request_id``, the request's id, which every response
        also has as the header ``request-id``."""
        ...

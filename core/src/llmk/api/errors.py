"""Errors that a user may see. Each names what was requested, what is available, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from llmk.api.verdict import Reason


class LlmkError(Exception):
    """Base of every error that llmk raises on purpose.

    ``message`` says in one sentence what went wrong, ``hint`` what to do next; ``reasons`` are the facts behind it.
    ``code`` is stable and machine-readable. ``exit_code`` is the exit code of the command line, ``http_status`` the
    status of the HTTP response.
    """

    code: ClassVar[str] = "internal_error"
    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500

    def __init__(self, message: str, *, hint: str = "", reasons: Sequence[Reason] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.reasons = tuple(reasons)

    def __str__(self) -> str:
        lines = [self.message, *(f"  - {reason}" for reason in self.reasons)]
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)


class ConfigError(LlmkError):
    """A configuration value, key or file that can't be used."""

    code, exit_code, http_status = "config_error", 2, 400


class PluginError(LlmkError):
    """A requested plugin is missing, incompatible, broken, or in conflict with another."""

    code, exit_code = "plugin_error", 3


class SelectionError(LlmkError):
    """No candidate supports a query, or the pinned one doesn't, or two candidates tie."""

    code, exit_code = "selection_error", 4


class CheckpointError(LlmkError):
    """A checkpoint with missing or truncated files, or with files that contradict its configuration."""

    code, exit_code = "checkpoint_error", 5


class UnsupportedOption(CheckpointError):
    """A valid checkpoint with an option that the implementation of its model family doesn't support. If another
    implementation claims the checkpoint, such as that of transformers, it is tried next."""

    code = "unsupported_option"


class ModelNotFound(CheckpointError):
    """There is no checkpoint at the given path or under the given model name."""

    code, http_status = "model_not_found", 404


class UnknownArchitecture(CheckpointError):
    """No installed plugin registers the checkpoint's architecture."""

    code = "unknown_architecture"


class NotEnoughMemory(LlmkError):
    """Weights, cache or activations don't fit; the message says how much is needed for what."""

    code, exit_code = "not_enough_memory", 6


class NotEnoughResources(LlmkError):
    """There are no places for all ranks; the message says what is missing, by machine."""

    code, exit_code = "not_enough_resources", 6


class PortInUse(LlmkError):
    """The address to listen on is taken."""

    code, exit_code = "port_in_use", 7


class RequestError(LlmkError):
    """An invalid request. ``param`` names the invalid field. For parameters that a plugin reads, it is the plugin's
    name or the path to one of them; if several fields are invalid only together, it is one of them."""

    code, http_status = "invalid_request_error", 400

    def __init__(self, message: str, *, param: str | None = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.param = param


class ContextLengthExceeded(RequestError):
    """The prompt, or the prompt plus the requested output, is longer than the model's context.

    Clients recognize this error by the words "this model's maximum context length is" of OpenAI's message.
    """

    code = "context_length_exceeded"


class Overloaded(LlmkError):
    """Too many requests are running or waiting; ``retry_after`` is in seconds."""

    code, http_status = "rate_limit_exceeded", 429

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RequestTimeout(LlmkError):
    """A request that did not finish within ``scheduler.request_timeout``.

    The status is 504 rather than 408: the client sent its request in time, but the engine did not answer in time.
    """

    code, http_status = "request_timeout", 504


class QueueTimeout(RequestTimeout):
    """A request that waited longer than ``scheduler.queue_timeout`` before its first step."""

    code = "queue_timeout"


class EngineDead(LlmkError):
    """The engine has ended or no longer responds. ``retry_after`` is in seconds; 0 if no restart is expected."""

    code, http_status = "engine_dead", 503

    def __init__(self, message: str, *, hint: str = "", retry_after: float = 0.0) -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after


def describe(error: BaseException) -> str:
    """The exception's type and the first line of its message."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def shown(value: object, most: int = 80) -> str:
    """``repr`` of an untrusted value for an error message, truncated to ``most`` characters."""
    text = repr(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."

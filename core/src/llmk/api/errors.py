"""Errors that a user may meet. Each says what was asked for, what there is, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from llmk.api.verdict import Reason


class LlmkError(Exception):
    """Base of every error that llmk raises on purpose.

    ``message`` is one sentence on what went wrong, ``hint`` one on what to do next, ``reasons`` the facts behind it.
    ``code`` is stable and machine-readable; ``exit_code`` is the process's, ``http_status`` the server's.
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
    """A plugin that was asked for is missing, incompatible, broken or in conflict."""

    code, exit_code = "plugin_error", 3


class SelectionError(LlmkError):
    """No candidate serves a query, or the one that was pinned can't, or two tie."""

    code, exit_code = "selection_error", 4


class CheckpointError(LlmkError):
    """A checkpoint whose files are missing, truncated, or disagree with its configuration."""

    code, exit_code = "checkpoint_error", 5


class ModelNotFound(CheckpointError):
    """No checkpoint stands where one was named."""

    code, http_status = "model_not_found", 404


class UnknownArchitecture(CheckpointError):
    """No installed plugin registers the checkpoint's architecture."""

    code = "unknown_architecture"


class NotEnoughMemory(LlmkError):
    """Weights, cache or activations don't fit; the message says how much is needed for what."""

    code, exit_code = "not_enough_memory", 6


class PortInUse(LlmkError):
    """The address to listen on is taken."""

    code, exit_code = "port_in_use", 7


class RequestError(LlmkError):
    """A request that can't be served as it stands; ``param`` names the field at fault."""

    code, http_status = "invalid_request_error", 400

    def __init__(self, message: str, *, param: str | None = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.param = param


class ContextLengthExceeded(RequestError):
    """The prompt, or the prompt and what was asked for, is longer than the model's context."""

    code = "context_length_exceeded"


class Overloaded(LlmkError):
    """Too many requests are running or waiting; ``retry_after`` is in seconds."""

    code, http_status = "rate_limit_exceeded", 429

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RequestTimeout(LlmkError):
    """A request that was not done within ``scheduler.request_timeout``.

    504 rather than 408: the client did send its request in time, the engine behind the server did not answer it.
    """

    code, http_status = "request_timeout", 504


class QueueTimeout(RequestTimeout):
    """A request that was not begun within ``scheduler.queue_timeout``."""

    code = "queue_timeout"


class EngineDead(LlmkError):
    """The engine is gone or no longer answers; ``retry_after`` is in seconds, 0 where nothing is known to follow."""

    code, http_status = "engine_dead", 503

    def __init__(self, message: str, *, hint: str = "", retry_after: float = 0.0) -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after


def describe(error: BaseException) -> str:
    """Type and first line of an exception's message."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def shown(value: object, most: int = 80) -> str:
    """A value that somebody else wrote, for an error's message: cut where it is long."""
    text = repr(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."

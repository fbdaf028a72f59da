"""Log lines with the ids of the requests that they concern, human-readable or as JSON."""

from __future__ import annotations

import json
import logging
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from textwrap import TextWrapper
from typing import Any, Literal

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""The id of the request that is being served. Log lines get it automatically; code outside of a request passes
``request_id``, or ``request_ids`` for several, as ``extra``."""

logger = logging.getLogger(__name__)

_INDENT = " " * len("12:34:56 ")
_SHOWN = 8
"""Characters of an id on a terminal."""
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


def setup(level: str = "info", format: Literal["text", "json"] = "text") -> None:
    """Makes this process log to standard error, including Python's warnings."""
    handler = logging.StreamHandler()
    handler.addFilter(_add_request)
    width = shutil.get_terminal_size().columns if sys.stderr.isatty() else 0
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter(width))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)


class TextFormatter(logging.Formatter):
    """A human-readable line: time, level, logger and message, then request ids in brackets. Tracebacks follow.

    With a ``width``, that of a terminal: the time of day, the level where it is above info, and the message, wrapped,
    with the first characters of ids.
    """

    def __init__(self, width: int = 0) -> None:
        super().__init__("%(asctime)s %(message)s" if width else "%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._width = width
        if width:
            self.datefmt = "%H:%M:%S"

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """The line without a traceback."""
        ids = getattr(record, "request_ids", None) or [getattr(record, "request_id", "")]
        if not self._width:
            return super().formatMessage(record) + (f" [{', '.join(ids)}]" if ids[0] else "")
        about = f" [{', '.join(id[:_SHOWN] for id in ids)}]" if ids[0] else ""
        level = f"{record.levelname}: " if record.levelno > logging.INFO else ""
        fit = TextWrapper(self._width, subsequent_indent=_INDENT, break_long_words=False, break_on_hyphens=False).fill
        lines = f"{level}{record.message}{about}".splitlines() or [""]
        return "\n".join([fit(f"{record.asctime} {lines[0]}"), *(fit(_INDENT + line) for line in lines[1:])])


class JsonFormatter(logging.Formatter):
    """A JSON object on one line: ``time`` (RFC 3339), ``level``, ``logger``, ``process``, ``message``, everything that
    was passed as ``extra``, and the traceback as ``exception``."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        data: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
        }
        # Libraries put names of their own on records, with an underscore in front.
        given = ((name, value) for name, value in vars(record).items() if name not in _OWN and name[0] != "_")
        data |= dict(given)
        if record.exc_info:
            data["exception"] = self.formatException(record.exc_info)
        return json.dumps(data, default=str)


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Logs how long a part of the startup took."""
    start = time.perf_counter()
    yield
    logger.info("%s: %.2f s", what, time.perf_counter() - start)


def _add_request(record: logging.LogRecord) -> bool:
    if (id := request_id.get()) and not hasattr(record, "request_id") and not hasattr(record, "request_ids"):
        record.request_id = id
    return True

"""Log lines and the requests that they are about."""

from __future__ import annotations

import json
import logging
import re
import warnings
from collections.abc import Iterator

import pytest

from llmk.config import logs

logger = logging.getLogger("a.logger")


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    logging.captureWarnings(False)
    root.handlers[:], root.level = handlers, level


def test_human_readable_lines(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup("info", "text")
    logger.debug("unseen")
    logger.info("about %s", "nothing")
    token = logs.request_id.set("r-1")
    logger.warning("about one")
    logger.warning("about two", extra={"request_ids": ["r-2", "r-3"]})
    logger.warning("about none", extra={"request_ids": []})
    logs.request_id.reset(token)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(",")[2][4:] for line in lines] == [
        "INFO a.logger: about nothing",
        "WARNING a.logger: about one [r-1]",
        "WARNING a.logger: about two [r-2, r-3]",
        "WARNING a.logger: about none",
    ]


def test_tracebacks_follow_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup()
    try:
        raise ValueError("x")
    except ValueError:
        logger.exception("failed", extra={"request_id": "r-1"})
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].endswith("ERROR a.logger: failed [r-1]")
    assert lines[-1] == "ValueError: x"


def test_lines_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup("debug", "json")
    token = logs.request_id.set("r-1")
    logger.debug("several\nlines of %d\ud800", 3, extra={"status": 200, "odd": {1, 2}, "request_id": "r-9"})
    logs.request_id.reset(token)
    warnings.warn("deprecated", UserWarning, stacklevel=1)
    try:
        raise ValueError("x")
    except ValueError:
        logger.exception("failed")
    first, second, third = map(json.loads, capsys.readouterr().err.splitlines())
    assert (first["message"], first["status"], first["request_id"]) == ("several\nlines of 3\ud800", 200, "r-9")
    assert first["odd"] == "{1, 2}"
    assert set(first) == {"time", "level", "logger", "process", "message", "status", "odd", "request_id"}
    assert (second["logger"], "UserWarning: deprecated" in second["message"]) == ("py.warnings", True)
    assert third["exception"].endswith("ValueError: x")
    assert "request_id" not in third


def test_on_a_terminal_lines_are_short_and_wrap_between_words() -> None:
    def shown(level: int, message: str, width: int) -> list[str]:
        record = logging.LogRecord("llmk.engine.launch", level, "", 0, message, (), None)
        return logs.TextFormatter(width).format(record).splitlines()

    long = "steps of 1 to 16 decoding requests, recorded each when it first runs, see /a/path/that-is/one_word"
    lines = shown(logging.INFO, long, 40)
    assert max(map(len, lines)) <= 40
    assert re.fullmatch(r"\d\d:\d\d:\d\d steps of .*", lines[0])
    assert all(line.startswith(" " * 9) for line in lines[1:])
    assert " ".join(line[9:] for line in lines) == long
    assert shown(logging.WARNING, "first\nsecond", 40)[0][9:] == "WARNING: first"
    assert shown(logging.WARNING, "first\nsecond", 40)[1] == " " * 9 + "second"
    record = logging.makeLogRecord({"msg": "GET", "levelno": logging.INFO, "request_ids": ["0123456789abcdef", "r-2"]})
    assert logs.TextFormatter(40).format(record)[9:] == "GET [01234567, r-2]"
    assert len(shown(logging.INFO, long, 0)) == 1, "files are for programs"

"""A mark says what a process is at, to others and after its end."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from llmk.engine.wire.plugin_mark import SIZE, PluginMark

HANGS = """
import os, sys, time
from pathlib import Path
from llmk.engine.wire.plugin_mark import PluginMark
mark = PluginMark(Path(sys.argv[1]))
with mark.at("the first"):
    pass
mark.set("the second")
print("here", flush=True)
os._exit(3) if sys.argv[2] == "exit" else time.sleep(60)
"""


def test_a_mark_is_read_as_it_was_set(tmp_path: Path) -> None:
    writer, reader = PluginMark(tmp_path / "mark"), PluginMark(tmp_path / "mark")
    assert reader.read() is None
    with writer.at("parser a.b of request 1"):
        first = reader.read()
        assert first is not None
        assert (first.what, 0 <= first.seconds < 60) == ("parser a.b of request 1", True)
    assert reader.read() is None
    writer.set("ä" * SIZE)
    second = reader.read()
    assert second is not None
    assert second.what.startswith("ä" * 100)
    assert second.number > first.number
    writer.close()
    assert PluginMark(tmp_path / "mark").read() == second


def test_a_mark_outlives_a_process_that_ends_and_one_that_hangs(tmp_path: Path) -> None:
    for how in ("exit", "hang"):
        path = tmp_path / how
        process = subprocess.Popen([sys.executable, "-c", HANGS, str(path), how], stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        before = PluginMark(path).read()
        time.sleep(0.01)
        if how == "exit":
            assert process.wait(30) == 3
        marked = PluginMark(path).read()
        assert marked is not None
        assert (marked.what, marked == before) == ("the second", True)
        assert marked.seconds > 0
        process.kill()
        process.wait()
        process.stdout.close()

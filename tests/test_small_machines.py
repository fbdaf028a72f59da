"""CPUs and containers that are too small: a slower way that is named, or one clear message."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import llmk_cpu.platform
from llmk import LLM
from llmk.api import Host, NotEnoughMemory


def container(root: Path, limit: int, used: int = 0) -> Host:
    """This machine's files, as in a control group that has so many bytes."""
    files = {
        "/proc/meminfo": Path("/proc/meminfo").read_text(),
        "/proc/self/cgroup": "0::/box\n",
        "/sys/fs/cgroup/box/memory.max": f"{limit}\n",
        "/sys/fs/cgroup/box/memory.current": f"{used}\n",
    }
    for path, text in files.items():
        file = root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return Host(root=root)


def test_a_limit_below_the_weights_is_told_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = container(tmp_path, 12 << 20, used=4 << 20)
    monkeypatch.setattr(llmk_cpu.platform, "Host", lambda: host)
    with pytest.raises(
        NotEnoughMemory, match=r"the weights need .* parameters in float32\), 8\.0 MiB is free"
    ) as raised:
        LLM(dtype="float32")
    assert "choose a smaller checkpoint" in raised.value.hint


def test_a_limit_below_the_cache_names_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = container(tmp_path, 700 << 20, used=4 << 20)
    monkeypatch.setattr(llmk_cpu.platform, "Host", lambda: host)
    with pytest.raises(NotEnoughMemory, match="the cache needs") as raised:
        LLM(dtype="float32", **{"cache.memory_gib": 2.0})
    assert "cache.memory_gib" in raised.value.hint


def test_without_avx2_the_faster_kernels_say_why_they_are_not_used() -> None:
    command = (sys.executable, "-m", "llmk", "explain", "--on", "cpu/x86_64", "--json")
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    choices = json.loads(done.stdout)["choices"]
    (linear,) = (each for each in choices if (each["kind"], each["site"]) == ("linear", "gate_up"))
    assert linear["pieces"][0]["why"]
    reasons = {each["id"]: each["reasons"] for each in linear["rejected"]}["cpu.linear_prepacked"]
    assert reasons[0] | {"hint": ""} == {
        "code": "arch",
        "wanted": "x86_64 >= 4",
        "found": "x86_64 (x86_64 2)",
        "hint": "",
    }

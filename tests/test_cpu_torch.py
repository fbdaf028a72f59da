"""``tools/cpu_torch.py``: when torch's builds for CPUs are asked for, and when pip is left alone."""

from __future__ import annotations

import http.server
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import cpu_torch
import pytest


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An index that answers, a pip that is not configured, and no GPU."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "torch").mkdir()
    handler = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), lambda *a: handler(*a, directory=str(tmp_path))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_index_is_used_where_nothing_speaks_against_it(index: str) -> None:
    assert cpu_torch.why_not(index) == ""


def test_torch_is_left_to_pip_where_there_is_a_gpu(index: str, tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi").touch(mode=0o755)
    assert cpu_torch.why_not(index) == "there is an NVIDIA GPU"


@pytest.mark.parametrize("name", ["INDEX_URL", "EXTRA_INDEX_URL", "FIND_LINKS", "NO_INDEX"])
def test_torch_is_left_to_a_pip_that_is_configured(index: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"PIP_{name}", "1")
    assert cpu_torch.why_not(index) == f"pip is configured ({name.lower().replace('_', '-')})"


def test_torch_is_left_to_pip_where_the_index_does_not_answer(index: str) -> None:
    assert "does not answer (HTTP Error 404" in cpu_torch.why_not(f"{index}/absent")
    assert "does not answer" in cpu_torch.why_not("http://127.0.0.1:9")

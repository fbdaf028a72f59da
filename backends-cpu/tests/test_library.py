"""The C++ library: its levels, its threads, its size, and wheels without it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from attention_steps import FACTS, query_of

from llmk.api import KernelSpec, OpQuery
from llmk.reference.norms import rms_norm as reference
from llmk_cpu.native import library as loader
from llmk_cpu.native.library import LEVEL_VARIABLE, Library, library, path
from llmk_cpu.native.norms import rms_norm
from llmk_cpu.native.specs import FEATURE, attention_backends, ops

ROOT = Path(__file__).resolve().parents[1]
X, WEIGHT = torch.randn(512, 2048), torch.randn(2048)
BUILD = """
import sys
from scikit_build_core.build import build_wheel
print(build_wheel(sys.argv[1]))
"""


def test_a_level_that_this_processor_lacks_is_refused() -> None:
    where = path()
    assert where is not None
    lowest = library().levels[-1]
    with pytest.raises(
        ImportError, match=rf"{LEVEL_VARIABLE} is 'avx1024', and this processor has .*{lowest}: name one, or unset it"
    ):
        Library(where, "avx1024")
    assert Library(where, lowest).levels == (lowest,)


def test_a_kernel_that_is_not_there_is_named() -> None:
    with pytest.raises(ImportError, match=rf"no kernel 'fly' for any of .*{library().levels[-1]}"):
        library().function("fly", "p")


def test_a_missing_library_is_a_failed_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loader turns it into a reason, and the next candidate serves."""
    monkeypatch.setattr(loader, "path", lambda: None)
    library.cache_clear()
    with pytest.raises(ImportError, match=r"built without libllmk_cpu\.so; install a C.. compiler"):
        library()
    library.cache_clear()


@pytest.mark.parametrize("spec", [*attention_backends(), *ops()], ids=lambda spec: spec.id)
def test_without_the_library_every_kernel_says_what_to_do(spec: KernelSpec) -> None:
    assert FACTS is not None
    facts = replace(FACTS, features=FACTS.features - {FEATURE})
    op = OpQuery(platform=facts, site="op", dtype="float32", op=spec.op)
    verdict = spec.supports(op if spec.op else replace(query_of(), platform=facts))
    assert "built without a C++ compiler (install one (Debian: g++)" in str(verdict.reasons[0])


def test_threads_share_the_work() -> None:
    before = library().threads
    expected = reference(X, WEIGHT, 1e-6)
    try:
        for threads in (1, 2, 7):
            library().set_threads(threads)
            assert library().threads == threads
            for _ in range(5):
                torch.testing.assert_close(rms_norm(X, WEIGHT, 1e-6), expected)
    finally:
        library().set_threads(before)


def test_several_callers_at_once() -> None:
    """The pool serves one at a time; the others compute alone."""
    expected = reference(X, WEIGHT, 1e-6)
    same: list[bool] = []

    def call() -> None:
        same.extend(torch.allclose(rms_norm(X, WEIGHT, 1e-6), expected, atol=1e-5) for _ in range(5))

    before = library().threads
    library().set_threads(3)
    try:
        callers = [threading.Thread(target=call) for _ in range(4)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    finally:
        library().set_threads(before)
    assert all(same)
    assert len(same) == 4 * 5


def test_a_child_of_fork_has_threads_of_its_own() -> None:
    code = (
        "import os, torch; from llmk_cpu.native.library import library; from llmk_cpu.native.norms import rms_norm;"
        "library().set_threads(3); x, w = torch.randn(512, 2048), torch.randn(2048); before = rms_norm(x, w, 1e-6);"
        "child = os.fork();"
        "same = torch.equal(rms_norm(x, w, 1e-6), before); threads = len(os.listdir('/proc/self/task'));"
        "os._exit(0 if same and threads >= 3 else 1) if child == 0 else None;"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 and same"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_idle_threads_sleep() -> None:
    """They spin for microseconds and then take no processor time."""
    code = (
        "import time, torch; from llmk_cpu.native.library import library; from llmk_cpu.native.norms import rms_norm;"
        "library().set_threads(4); rms_norm(torch.randn(512, 2048), torch.randn(2048), 1e-6); time.sleep(0.1);"
        "before = time.process_time(); time.sleep(0.5); assert time.process_time() - before < 0.02"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_wheel_is_small_and_has_one_library(tmp_path: Path) -> None:
    wheel = _build(tmp_path)
    assert wheel.name.split("-")[2:4] == ["py3", "none"]
    assert wheel.stat().st_size < 3 << 20
    assert [name for name in zipfile.ZipFile(wheel).namelist() if ".so" in name] == [f"llmk_cpu/native/{loader.FILE}"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_without_a_compiler_the_wheel_has_no_library(tmp_path: Path) -> None:
    names = zipfile.ZipFile(_build(tmp_path, "/bin/false")).namelist()
    assert "llmk_cpu/native/library.py" in names
    assert not [name for name in names if ".so" in name]


def _build(folder: Path, compiler: str = "c++") -> Path:
    source = folder / "source"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns("build", "tests", "__pycache__"))
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(folder)],
        cwd=source, capture_output=True, text=True, timeout=500, env={**os.environ, "CXX": compiler},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / done.stdout.split()[-1]

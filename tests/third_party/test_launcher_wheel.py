"""A stranger's launcher, from its wheel: ranks on hosts with addresses of their own, which need not be told apart from
other machines, and what becomes of hosts that are not fit."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from scratch import build_wheels
from served import LLMK, until
from spread import answers, check, make, tight

from llmk import LLM
from llmk.api import ConfigError, EngineDead, NotEnoughResources

pytestmark = pytest.mark.slow_file

SOURCE = Path(__file__).with_name("hosts")
FAMILY = "mixtral"
HOSTS = ["127.0.0.2", "127.0.0.3"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What its wheel installs, on the path of this process."""
    folder = tmp_path_factory.mktemp("wheel")
    wheel = build_wheels({"hosts": SOURCE}, folder)["hosts"]
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    sys.path.insert(0, str(folder / "site"))
    yield folder / "site"
    sys.path.remove(str(folder / "site"))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("checkpoint"), FAMILY)


def on(site: Path, *, hosts: list[str] = HOSTS, path: str = "", **parallel: Any) -> dict[str, Any]:
    """Options of an engine with ranks on the hosts, whose processes have what is in ``site``."""
    command = ["env", f"PYTHONPATH={path}{site}", "HOST={host}", sys.executable]
    own = {"address": "127.0.0.1", "hosts": hosts, "command": command}
    return {**tight(FAMILY), "parallel": parallel, "select": {"launcher": {"use": "hosts"}}, "plugin": {"hosts": own}}


def test_it_is_small(site: Path) -> None:
    assert len((site / "llmk_hosts/launcher.py").read_text().splitlines()) < 80


def test_same_answers_and_the_end_of_a_rank(site: Path, checkpoint: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with LLM(str(checkpoint), **tight(FAMILY)) as llm:
        expected = answers(llm)
    with LLM(str(checkpoint), **on(site, tensor=2)) as llm:
        core: Any = llm._core
        check(answers(llm), expected)
        pids = core.runner.pids
        listening = [
            each.laddr.ip
            for process in map(psutil.Process, [*pids, psutil.Process().pid])
            for each in process.net_connections("inet")
            if each.status == psutil.CONN_LISTEN
        ]
        assert set(listening) <= {"127.0.0.1", *HOSTS}, "nothing listens on all addresses"
        psutil.Process(pids[1]).kill()
        with pytest.raises(
            EngineDead, match=r"process 1 \(stage 0, tensor rank 1\) on 127\.0\.0\.3 was killed by SIGKILL"
        ):
            until(lambda: not core.answers() and False, timeout=10)
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids), timeout=10)
    assert re.search(r"^\[rank 0 on 127\.0\.0\.2\] .* weights: ", capfd.readouterr().err, re.MULTILINE)


@pytest.mark.slow
def test_stages(site: Path, checkpoint: Path) -> None:
    with LLM(str(checkpoint), **tight(FAMILY)) as llm:
        expected = answers(llm)
    with LLM(str(checkpoint), **on(site, pipeline=2)) as llm:
        check(answers(llm), expected)


def test_too_few_hosts(site: Path, checkpoint: Path) -> None:
    with pytest.raises(NotEnoughResources, match=r"2 ranks need a host each, and there are 127\.0\.0\.2"):
        LLM(str(checkpoint), **on(site, hosts=HOSTS[:1], tensor=2))


@pytest.mark.slow
def test_hosts_that_are_not_fit_are_named(site: Path, checkpoint: Path, tmp_path: Path) -> None:
    """All of what is wrong with each."""
    other = tmp_path / "llmk_models-0.0.9.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: llmk-models\nVersion: 0.0.9\n")
    (other / "entry_points.txt").write_text("[llmk.v1]\nmodels = llmk_models.specs\n")
    with pytest.raises(ConfigError) as caught:
        LLM(str(checkpoint), **on(site, path=f"{tmp_path}:", tensor=2))
    said = str(caught.value)
    assert said.startswith("2 of 2 nodes can't run what this machine planned:\n")
    assert re.findall(r"^(\S+): llmk-models is 0\.0\.9, not 0\.1\.0$", said, re.MULTILINE) == HOSTS


def test_a_host_without_llmk(site: Path, checkpoint: Path) -> None:
    given = on(site, tensor=2)
    given["plugin"]["hosts"]["command"] = [sys.executable, "-S"]
    with pytest.raises(EngineDead, match=r"ended with exit code 1 \(.*No module named 'llmk'\)"):
        LLM(str(checkpoint), **given)


@pytest.mark.slow
def test_the_kit_passes_it(site: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [*LLMK, "plugins", "check", "hosts"],
        env={**os.environ, "PYTHONPATH": str(site)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^hosts\.launcher +launcher +\d+ +0 +0 ", done.stdout, re.MULTILINE), done.stdout

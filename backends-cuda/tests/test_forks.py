"""Work in forked processes: all of it is done, what fails or hangs stops nothing else."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from llmk_cuda.forks import Forks


def test_functions_run_in_other_processes_a_few_at_a_time(tmp_path: Path) -> None:
    forks = Forks(most=2)
    for number in range(7):
        forks.submit(lambda number=number: (tmp_path / str(number)).write_text(str(os.getpid())))
        assert len(forks._ends) <= 2
    forks.join()
    written = {path.name: int(path.read_text()) for path in tmp_path.iterdir()}
    assert sorted(written) == [str(number) for number in range(7)]
    assert os.getpid() not in written.values()
    assert len(set(written.values())) == 7


def test_failures_and_hangs_do_not_stop_others(tmp_path: Path) -> None:
    start = time.monotonic()
    forks = Forks(most=3, limit=0.5)
    forks.submit(lambda: 1 / 0)
    forks.submit(lambda: time.sleep(60))
    forks.submit(lambda: (tmp_path / "done").touch())
    forks.join()
    assert (tmp_path / "done").exists()
    assert 0.4 < time.monotonic() - start < 20


def test_children_of_a_stuck_process_are_killed_with_it(tmp_path: Path) -> None:
    forks = Forks(limit=0.3)
    forks.submit(lambda: subprocess.run(["sh", "-c", f"sleep 1; touch {tmp_path / 'late'}"], check=False))
    forks.join()
    time.sleep(1.2)
    assert not (tmp_path / "late").exists()

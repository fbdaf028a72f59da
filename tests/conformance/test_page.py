"""The suite of pages passes a good one and finds each planted defect."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from defects import Defect
from defects.page import DEFECTS, GOOD
from killing import check_good, check_killed, failed, results

from llmk.api import PageSpec
from llmk_testing.bench import Bench
from llmk_testing.suites.page_runs import CHECKS

RUN = {name for name, _ in CHECKS}
"""Cases that run a page in Node.js."""
Made = Callable[[Mapping[str, str]], PageSpec]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    """Makes a page that differs from the good one in these files or fields."""

    def make(changes: Mapping[str, str]) -> PageSpec:
        folder = tmp_path / "defective_pages" / "files"
        folder.mkdir(parents=True)
        (folder.parent / "__init__.py").touch()
        monkeypatch.syspath_prepend(str(tmp_path))
        for name, text in {**GOOD, **changes}.items():
            if "." in name:
                (folder / name).write_text(text)
        return PageSpec(id="pages.page", path=changes.get("path", "/"), package="defective_pages", folder="files")

    return make


def test_a_good_one_passes(made: Made, bench: Bench) -> None:
    if shutil.which("node"):
        check_good("page", made({}), bench)
    else:
        found = {result.name: result for result in results("page", made({}), bench)}
        assert {name for name, result in found.items() if result.outcome != "passed"} == RUN
        assert all("there is no node" in found[name].message for name in RUN)


@pytest.mark.parametrize("defect", DEFECTS, ids=str)
def test_killed(defect: Defect, made: Made, bench: Bench) -> None:
    if any(defect.case in name for name in RUN) and not shutil.which("node"):
        pytest.skip("there is no node, in which pages are run")
    check_killed("page", made(defect.provider), bench, defect.case)


def test_a_folder_without_an_index_fails_all_cases(made: Made, bench: Bench) -> None:
    spec = made({})
    import defective_pages  # type: ignore[import-not-found]

    (Path(defective_pages.__path__[0]) / "files/index.html").unlink()
    assert len(failed("page", spec, bench)) == 21

"""The core stays small enough to read."""

from __future__ import annotations

from pathlib import Path

from size_report import (
    FILE_LIMIT,
    FOLDER_LIMIT,
    FUNCTION_LIMIT,
    ROOT,
    STRANGER,
    STRANGER_LIMIT,
    code_lines,
    full_folders,
    long_files,
    long_functions,
    python_files,
)


def test_a_platform_can_be_written_in_few_lines() -> None:
    lines = sum(map(code_lines, python_files(ROOT / STRANGER)))
    assert 0 < lines <= STRANGER_LIMIT


def test_no_file_is_two_files() -> None:
    rows = long_files()
    assert not rows, f"over {FILE_LIMIT} lines: ask what it is really two of:\n{rows}"


def test_no_function_is_two_functions() -> None:
    rows = long_functions()
    assert not rows, f"over {FUNCTION_LIMIT} lines: ask what it is really two of:\n{rows}"


def test_no_folder_is_two_folders() -> None:
    rows = full_folders()
    assert not rows, f"over {FOLDER_LIMIT} modules: ask what it is really two of:\n{rows}"
    assert full_folders(limit=1), "folders are counted"


def test_only_code_counts(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    source = ['"""Two', 'lines."""', "", "# a comment", "x = (", "    1", ")  # and another", "", "def f():"]
    file.write_text("\n".join([*source, '    """What it is."""', "    return x", ""]))
    assert code_lines(file) == 5

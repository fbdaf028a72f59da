"""Prose is in plain English: the old idioms are gone, and their search finds them wherever they may hide."""

from __future__ import annotations

import pytest
from word_list import ALLOWED, DATA, ROOT, files, hits, searched


@pytest.mark.slow
def test_the_project_has_no_old_idioms() -> None:
    found = [hit for path in files() for hit in hits(path, (ROOT / path).read_text())]
    assert not found, f"{len(found)} old idioms; run `make words` for all:\n" + "\n".join(map(str, found[:50]))


@pytest.mark.parametrize(
    ("source", "line", "word"),
    [
        ("x = 1  # nobody reads it", 1, "nobody"),
        ("# They help one\n# another.", 1, "one another"),
        ('"""A docstring, that is\n\nlong and begun."""', 3, "begun"),
        ('raise ValueError("The request " "was\\ntold to stop")', 1, "told"),
        ('raise ValueError(\n    "The oldest gives "\n    f"way to {name}"\n)', 2, "gives way"),
        ("x = f'{a!r} is none {b} {c:{d}}'", 1, "is none"),
        ("def test_what_it_is_told() -> None: ...", 1, "what_it_is_told"),
        ("class EldestFirst: ...", 1, "Eldest"),
        ("outputs.begun = 1", 1, "begun"),
        ('"""As ``Spec.begin`` does."""', 1, "begin"),
    ],
)
def test_an_idiom_is_found_in_python(source: str, line: int, word: str) -> None:
    first = hits("core/src/module.py", source + "\n")[0]
    assert (first.line, first.word) == (line, word)


@pytest.mark.parametrize(
    "source",
    [
        "if x is None: let = x in y",
        "# There is none.",
        '"""Whether the argument is None."""',
        "for people in persons: ...",
        "besides, production, retold, dot_products = 1",
        '"""The matrix product and a dot\nproduct."""',
        "import itertools\n\nitertools.product(a, b)",
        'token = "<｜tool▁calls▁begin｜>"',
    ],
)
def test_plain_english_and_code_are_no_hits(source: str) -> None:
    assert not hits("core/src/module.py", source + "\n")


def test_idioms_are_found_in_pages_and_names_of_files() -> None:
    found = hits("docs/told.md", "# Page\n\nIt goes on,\nwhatever the `device` brings.\n")
    assert [(hit.line, hit.word) for hit in found] == [(1, "told"), (4, "brings"), (4, "whatever")]


def test_only_prose_of_this_project_is_searched() -> None:
    paths = files()
    assert {"README.md", "CONTRIBUTING.md", "docs/architecture.md", "core/src/llmk/api/specs.py"} <= set(paths)
    assert "CHANGELOG.md" not in paths
    assert not searched("models/training/corpus/smalltalk.py")
    for folder in DATA:
        assert (ROOT / folder).is_dir(), f"{folder} is gone: remove it from DATA"


@pytest.mark.parametrize("allowed", ALLOWED)
def test_every_allowance_is_used(allowed: str) -> None:
    allowed = allowed.strip("\0 ")  # a string that is this word alone
    assert any(allowed in (ROOT / path).read_text() for path in files()), f"nothing has {allowed!r}: remove it"

"""Fills the blocks of the documentation that are made from the code, and wraps all pages.

Without arguments, exits with 1 where a block differs from the committed page or a line is too long; with ``--write``,
writes them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

import compiled_kernels
import config_reference
import feature_matrix
import hook_pages
import http_reference
import model_table
import mutation_score
import package_pages
import package_tables
import plugin_directory
import verified
import vocabulary
from generated import Page
from wrap_docs import WIDTH, documents, too_long, wrap

SOURCES = (
    compiled_kernels,
    config_reference,
    feature_matrix,
    hook_pages,
    http_reference,
    model_table,
    mutation_score,
    package_pages,
    package_tables,
    plugin_directory,
    verified,
    vocabulary,
)


def pages() -> Iterator[Page]:
    """Every page that has such blocks."""
    for source in SOURCES:
        yield from source.pages()


def main() -> int:
    """Compares or writes; 1 where a page is out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the blocks")
    if parser.parse_args().write:
        for page in pages():
            page.write()
        for file in documents():
            file.write_text(wrap(file.read_text()))
        return 0
    found = [difference for page in pages() if (difference := page.difference())]
    found += [
        f"{file}:{number}: over {WIDTH} columns" for file in documents() for number, _ in too_long(file.read_text())
    ]
    if found:
        print("\n".join([*found, "", "pages are out of date: run `make docs`"]))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())

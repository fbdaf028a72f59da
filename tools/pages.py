"""Fills the blocks of the documentation that are made from the code, and wraps all pages.

Without arguments, compares the blocks with the committed pages and exits with 1 where they differ; with ``--write``,
writes them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

import config_reference
import feature_matrix
import hook_pages
import http_reference
import package_pages
import package_tables
import plugin_directory
import vocabulary
from generated import Page
from wrap_docs import documents, wrap

SOURCES = (
    config_reference,
    feature_matrix,
    hook_pages,
    http_reference,
    package_pages,
    package_tables,
    plugin_directory,
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
    changed = [difference for page in pages() if (difference := page.difference())]
    if changed:
        print("\n".join([*changed, "", "pages are out of date: run `make docs`"]))
    return bool(changed)


if __name__ == "__main__":
    sys.exit(main())

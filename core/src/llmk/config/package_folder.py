"""Folders of files inside packages."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path


def package_folder(package: str, folder: str) -> Path | None:
    """The folder ``folder`` inside the package ``package``; ``None`` if there is no such folder. Imports nothing."""
    top, *inner = package.split(".")
    try:
        found = find_spec(top)
    except ValueError:
        found = None
    folders = (Path(place, *inner, folder) for place in (found.submodule_search_locations or () if found else ()))
    return next((folder for folder in folders if folder.is_dir()), None)

"""Plugins as they lie in site-packages, made on the spot."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def install(folder: Path, name: str, specs: str, **modules: str) -> Path:
    """Lays out the distribution ``name`` in ``folder``: its plugin module ``{name}_specs``, and other modules by name.
    Returns ``folder``, which is to be on the path."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    for module, text in {f"{name}_specs": specs, **modules}.items():
        (folder / f"{module}.py").write_text(text)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[llmk.v1]\n{name} = {name}_specs\n")
    return folder


@contextmanager
def installed(folder: Path, name: str, specs: str, **modules: str) -> Iterator[Path]:
    """As :func:`install`, on the path of this process meanwhile."""
    sys.path.insert(0, str(install(folder, name, specs, **modules)))
    try:
        yield folder
    finally:
        sys.path.remove(str(folder))

"""The levels of instructions that this machine can run, and calls of kernels at each."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import pytest

from llmk_cpu.native import library as loader

LIBRARY = loader.library()
MODULES = ("norms", "activations", "attention", "recurrent", "batch", "latent")


@contextmanager
def at_level(level: str, patch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """The modules of kernels, bound at ``level`` while this context is open."""
    patch.setenv(loader.LEVEL_VARIABLE, level)
    modules = {name: importlib.import_module(f"llmk_cpu.native.{name}") for name in MODULES}
    loader.library.cache_clear()
    try:
        yield {name: importlib.reload(module) for name, module in modules.items()}
    finally:
        patch.undo()
        loader.library.cache_clear()
        for module in modules.values():
            importlib.reload(module)

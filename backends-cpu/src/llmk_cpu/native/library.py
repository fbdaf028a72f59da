"""The C++ library: found in this package, loaded by ctypes, and used at the best level of instructions that the
processor has. Imports no torch."""

from __future__ import annotations

import ctypes
import os
import threading
from abc import abstractmethod
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import llmk_cpu.native

FILE = "libllmk_cpu.so"
LEVEL_VARIABLE = "LLMK_CPU_LEVEL"
"""Environment variable that names the highest level of instructions to use, for tests and comparisons."""

FLOAT32, BFLOAT16, FLOAT16, FLOAT8, INT8 = range(5)
"""Codes of dtypes in the C interface."""

_TYPES = {"p": ctypes.c_void_p, "i": ctypes.c_int64, "d": ctypes.c_int32, "f": ctypes.c_float}

Function = Callable[..., None]


class Recorder(Protocol):
    """What takes calls of kernels down, after they ran."""

    @abstractmethod
    def called(self, kernel: Kernel, args: tuple[Any, ...]) -> None:
        """Takes down that ``kernel`` ran with ``args``."""
        ...


class _State(threading.local):
    """What a thread does. ``recorder`` takes down the kernels that it runs."""

    recorder: Recorder | None = None


STATE = _State()


class Kernel:
    """A kernel of the library at one level, called with its arguments. ``signature`` is as in
    :meth:`Library.function`; ``address`` is that of its entry for arguments in words, for calls that are replayed."""

    __slots__ = ("_run", "address", "signature")

    def __init__(self, run: Function, address: int, signature: str) -> None:
        self._run = run
        self.address = address
        self.signature = signature

    def __call__(self, *args: Any) -> None:
        """Runs the kernel."""
        self._run(*args)
        if STATE.recorder is not None:
            STATE.recorder.called(self, args)


class Library:
    """The loaded library. ``levels`` are the levels of instructions in use, best first."""

    def __init__(self, path: Path, highest: str = "") -> None:
        self._library = ctypes.CDLL(str(path))
        self._library.llmk_levels.restype = ctypes.c_char_p
        levels = tuple(self._library.llmk_levels().decode().split())
        if highest and highest not in levels:
            own = ", ".join(levels) or "none that kernels are compiled for"
            raise ImportError(f"{LEVEL_VARIABLE} is {highest!r}, and this processor has {own}: name one, or unset it")
        self.levels = levels[levels.index(highest) :] if highest else levels

    def function(self, name: str, signature: str) -> Kernel:
        """The kernel ``name`` at the best level that has it.

        ``signature`` has a letter per argument: ``p`` for a pointer (an ``int``, or ``None``), ``i`` for a 64-bit
        integer, ``d`` for a dtype's code or another 32-bit integer, ``f`` for a float.
        """
        kernel = self.optional(name, signature)
        if kernel is None:
            raise ImportError(
                f"{FILE} has no kernel {name!r} for any of {', '.join(self.levels)}: build the wheel again"
            )
        return kernel

    def optional(self, name: str, signature: str) -> Kernel | None:
        """:meth:`function` of a kernel that not all levels have; ``None`` where those in use don't."""
        for level in self.levels:
            found = getattr(self._library, f"llmk_{level}_{name}", None)
            if found is not None:
                found.restype, found.argtypes = None, [_TYPES[letter] for letter in signature]
                words = getattr(self._library, f"llmk_{level}_{name}_words")
                return Kernel(found, ctypes.cast(words, ctypes.c_void_p).value or 0, signature)
        return None

    @property
    def replay(self) -> Function:
        """Runs kernels: the address of an array with a pair of addresses for each, its :attr:`Kernel.address` and that
        of its arguments' words; and how many there are."""
        found = self._library.llmk_replay
        found.restype, found.argtypes = None, [ctypes.c_void_p, ctypes.c_int64]
        return found

    def set_threads(self, count: int) -> None:
        """Sets how many threads kernels use; 0: one per processor."""
        self._library.llmk_set_threads(count)

    @property
    def threads(self) -> int:
        """How many threads kernels use."""
        return int(self._library.llmk_threads())


def path() -> Path | None:
    """Where the library is; ``None`` if the wheel was built without it."""
    folders = [Path(folder) for folder in llmk_cpu.native.__path__]
    return next((folder / FILE for folder in folders if (folder / FILE).is_file()), None)


@cache
def library() -> Library:
    """The library, loaded once per process. Raises ``ImportError`` if there is none."""
    found = path()
    if found is None:
        raise ImportError(f"llmk-backends-cpu was built without {FILE}; install a C++ compiler and the wheel again")
    return Library(found, os.environ.get(LEVEL_VARIABLE, ""))

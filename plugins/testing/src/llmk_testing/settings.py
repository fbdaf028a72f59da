"""What belongs to the whole process: code under test must leave it as it is."""

from __future__ import annotations

import gc
import locale
import logging
import os
import random
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from decimal import getcontext
from typing import Any, NamedTuple

import torch

THREADS = "the number of threads"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGALRM, signal.SIGSEGV)
_CHOSEN = {"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "3", "TOKENIZERS_PARALLELISM": "false"}
"""Variables that users set, which are set where they are not."""


class _Setting(NamedTuple):
    """How a setting is read, and put back."""

    read: Callable[[], Any]
    put_back: Callable[[Any], object]


def _handlers() -> tuple[Any, ...]:
    return tuple(signal.getsignal(each) for each in _SIGNALS)


def _handle(handlers: tuple[Any, ...]) -> None:
    if threading.current_thread() is threading.main_thread():
        for number, handler in zip(_SIGNALS, handlers, strict=True):
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)


def _silenced() -> int:
    """Filters that ignore all warnings."""
    return sum(one[0] == "ignore" and one[1] is None and one[2] is Warning and not one[3] for one in warnings.filters)


def _unsilence(count: int) -> None:
    for _ in range(_silenced() - count):
        del warnings.filters[:1]  # type: ignore[attr-defined]


def _logging() -> tuple[int, int, int]:
    return logging.root.level, len(logging.root.handlers), logging.root.manager.disable


def _log_as(before: tuple[int, int, int]) -> None:
    logging.root.setLevel(before[0])
    del logging.root.handlers[before[1] :]
    logging.disable(before[2])


def _drawn_by_numpy() -> Any:
    numpy = sys.modules.get("numpy")
    return None if numpy is None else numpy.random.get_state()[1:3]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        return all(map(_same, one, other))
    return one is other or bool((one == other) if not hasattr(one, "shape") else (one == other).all())


_SETTINGS: Mapping[str, _Setting] = {
    "the default dtype": _Setting(torch.get_default_dtype, torch.set_default_dtype),
    "the default device": _Setting(torch.get_default_device, lambda device: torch.set_default_device(None)),
    THREADS: _Setting(torch.get_num_threads, torch.set_num_threads),
    "grad mode": _Setting(torch.is_grad_enabled, torch.set_grad_enabled),
    "autocast": _Setting(lambda: torch.is_autocast_enabled("cpu"), lambda on: torch.set_autocast_enabled("cpu", on)),
    "the precision of float32 GEMMs": _Setting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "whether algorithms are deterministic": _Setting(
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms
    ),
    "whether subnormal numbers are zeros": _Setting(
        lambda: float(torch.full((1,), 1e-39) * 1.0) == 0.0, torch.set_flush_denormal
    ),
    "the state of Python's random generator": _Setting(random.getstate, random.setstate),
    "the state of NumPy's random generator": _Setting(_drawn_by_numpy, lambda state: None),
    "the handlers of signals": _Setting(_handlers, _handle),
    "the locale": _Setting(
        lambda: locale.setlocale(locale.LC_ALL), lambda before: locale.setlocale(locale.LC_ALL, before)
    ),
    "the filters of warnings": _Setting(_silenced, _unsilence),
    "the logging of all code": _Setting(_logging, _log_as),
    "the working directory": _Setting(os.getcwd, os.chdir),
    "the limit of recursion": _Setting(sys.getrecursionlimit, sys.setrecursionlimit),
    "how long texts of numbers may be": _Setting(sys.get_int_max_str_digits, sys.set_int_max_str_digits),
    "the precision of decimal numbers": _Setting(
        lambda: getcontext().prec, lambda before: setattr(getcontext(), "prec", before)
    ),
    "the timeout of sockets": _Setting(socket.getdefaulttimeout, socket.setdefaulttimeout),
    "whether garbage is collected": _Setting(gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
}
_UNUSUAL = {
    "the limit of recursion": 2063,
    "how long texts of numbers may be": 4801,
    "the precision of decimal numbers": 31,
}
"""Values that no plugin sets, so that one that was set before, to the same, is seen."""
_GENERATOR = "the state of torch's random generator"


@contextmanager
def _unusual() -> Iterator[None]:
    first = {name: _SETTINGS[name].read() for name in _UNUSUAL}
    for name, value in _UNUSUAL.items():
        _SETTINGS[name].put_back(value)
    try:
        yield
    finally:
        for name, value in first.items():
            _SETTINGS[name].put_back(value)


@contextmanager
def leaving_settings(but: Collection[str] = ()) -> Iterator[None]:
    """Raises ``AssertionError`` at the end if code within changed a setting that all code of the process shares,
    ``but`` for these, or a variable of the environment that was set; puts them back."""
    threads, drawn_by_python, environ = torch.get_num_threads(), random.getstate(), dict(os.environ)
    os.environ.update({**_CHOSEN, **environ})
    given = dict(os.environ)
    with torch.random.fork_rng(devices=[]), _unusual():
        # So that a state is not that of a fresh seed, nor the number of threads the least.
        torch.rand(()), random.random()
        torch.set_num_threads(max(2, threads))
        before = {name: setting.read() for name, setting in _SETTINGS.items()}
        drawn = torch.get_rng_state()
        try:
            yield
        finally:
            changed = [name for name, setting in _SETTINGS.items() if not _same(setting.read(), before[name])]
            changed += [] if torch.equal(torch.get_rng_state(), drawn) else [_GENERATOR]
            changed += [f"the variable {name}" for name, value in given.items() if os.environ.get(name) != value]
            for name in changed:
                if name in _SETTINGS:
                    _SETTINGS[name].put_back(before[name])
            _put_back(given, environ)
    torch.set_num_threads(threads)
    random.setstate(drawn_by_python)
    wrong = [name for name in changed if name not in but]
    assert not wrong, f"it changes {', '.join(wrong)}, which the whole process shares"


def _put_back(given: Mapping[str, str], environ: Mapping[str, str]) -> None:
    """Of the environment, what was there; variables that were added stay, as later code may rely on them."""
    for name in given.keys() - environ.keys():
        os.environ.pop(name, None)
    os.environ.update(environ)

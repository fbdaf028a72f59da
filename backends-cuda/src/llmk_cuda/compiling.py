"""Compiles Triton kernels in parallel, before they are needed.

A launch compiles its kernel and waits for it, so a model's kernels would be compiled one after the other, each for
about a second. Here, launches only submit what they need, and forked processes compile it; threads would wait for
Python's lock, which Triton holds for a fifth of the time. Results go to Triton's own cache on disk, where this process
finds them.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from threading import Thread
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from llmk_cuda.forks import Forks

logger = logging.getLogger(__name__)

_UNFILLED = {
    *(torch.empty, torch.empty_like, torch.empty_strided),
    *(torch.Tensor.new_empty, torch.Tensor.new_empty_strided),
}


def read_compiler() -> None:
    """Makes Triton hash its own source files, which is part of its cache key, while other components start: this takes
    most of a second, for which the first kernel would wait."""
    try:
        from triton.runtime.cache import triton_key
    except ImportError:  # kernels that need Triton report it
        return
    Thread(target=triton_key, daemon=True).start()


def report_compilations() -> None:
    """From now on, logs each kernel that is compiled at its launch, for which running requests wait. A listener that
    was set before stays."""
    from triton import knobs

    knobs.compilation.listener = knobs.compilation.listener or _report


def _report(*, src: Any, times: Any, cache_hit: bool, **_: object) -> None:
    """Follows Triton's ``CompilationListener``; ``times.total`` is in microseconds."""
    if not cache_hit:
        logger.warning("kernel %s was not compiled ahead: requests waited %.1f s for it", src.name, times.total / 1e6)


class TritonCompiling:
    """Follows ``llmk.api.Compiling``. Only launches of the thread that enters :meth:`ahead` are collected."""

    @contextmanager
    def ahead(self) -> Iterator[None]:
        """See :meth:`llmk.api.Compiling.ahead`. Kernels with ``triton.autotune`` must not be launched within:
        autotuning needs real runs."""
        try:
            from triton.runtime._async_compile import active_mode
        except ImportError as error:
            logger.warning("kernels are compiled one by one, where they are launched: %s", error)
            yield
            return
        mode = _Ahead()
        token = active_mode.set(mode)
        try:
            with _Zeros():
                yield
        finally:
            active_mode.reset(token)
            mode.finish()
            report_compilations()


class _Ahead:
    """Replaces Triton's ``AsyncCompileMode``. There, a launch waits for its kernel; here, it is skipped."""

    def __init__(self) -> None:
        self._forks = Forks()
        self._unlaunched = _Unlaunched()
        self._compiles: dict[str, Callable[[], Any]] = {}
        self._waiting: list[tuple[str, Callable[[Any], None]]] = []

    def submit(self, key: str, compile: Callable[[], Any], keep: Callable[[Any], None]) -> _Unlaunched:
        """Called for a kernel that is not in this process's cache, to which ``keep`` adds it. ``key`` is its key in the
        cache on disk; two kernels may have the same key."""
        if key not in self._compiles:
            self._compiles[key] = compile
            if not _is_cached(key):
                self._forks.submit(partial(_compile, compile))
        self._waiting.append((key, keep))
        keep(self._unlaunched)
        return self._unlaunched

    def finish(self) -> None:
        """Waits for all compilations and loads the kernels from the cache on disk; raises the first error."""
        self._unlaunched.over = True
        self._forks.join()
        kernels: dict[str, Any] = {}
        errors = []
        for key, compile in self._compiles.items():
            try:
                kernels[key] = compile()
            except Exception as error:
                errors.append(error)
        for key, keep in self._waiting:
            if key in kernels:
                keep(kernels[key])
        if errors:
            raise errors[0]


def _compile(compile: Callable[[], Any]) -> None:
    """Compiles a kernel to the cache on disk, with its launcher, for which Triton 3.6 runs a C compiler."""
    from triton.runtime.driver import driver

    kernel = compile()
    driver.active.launcher_cls(kernel.src, kernel.metadata)


def _is_cached(key: str) -> bool:
    """Whether the cache on disk contains it, or most of it."""
    from triton.runtime.cache import get_cache_manager

    folder = getattr(get_cache_manager(hashlib.sha256(key.encode()).hexdigest()), "cache_dir", None)
    return folder is not None and bool(os.listdir(folder))


class _Unlaunched:
    """Stands for a kernel that is being compiled, with the interface that a launch uses."""

    function = packed_metadata = None

    def __init__(self) -> None:
        self.over = False

    def launch_metadata(self, *arguments: object) -> None:
        """No metadata."""

    def run(self, *arguments: object) -> None:
        """Launches nothing; after :meth:`_Ahead.finish`, raises ``RuntimeError``, because this kernel could not be
        compiled."""
        if self.over:
            raise RuntimeError("the kernel could not be compiled ahead of time; the log has the error")


class _Zeros(TorchFunctionMode):
    """Fills uninitialized tensors with zeros. A skipped kernel writes no indices, and zeros are valid indices.

    Not a ``TorchDispatchMode``: the first of those in a process imports a thousand modules, for seconds.
    """

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        return result.zero_() if func in _UNFILLED else result

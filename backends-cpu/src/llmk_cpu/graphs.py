"""Steps that are recorded when they first run: native kernels are replayed by one call, so that the interpreter has
nothing to do between them; what torch computes is issued again."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from llmk_cpu.native.copies import native_copy
from llmk_cpu.native.library import STATE, Function, Kernel, library

_ALLOCATIONS = frozenset(
    {torch.ops.aten.empty, torch.ops.aten.empty_like, torch.ops.aten.new_empty, torch.ops.aten.empty_strided}
)


class CPUGraphs:
    """Follows ``llmk.api.Graphs``."""

    on_demand = 16
    """Up to so many rows, a GEMM takes little longer than reading its weights, so that what lies between GEMMs
    counts."""

    def capture(self, run: Callable[[], Any]) -> Callable[[], Any]:
        """As the protocol says. Nothing runs before the first call of what this returns, and that runs ``run``."""
        return Replay(run)

    def concurrent(self, first: Callable[[], Any], second: Callable[[], Any]) -> tuple[Any, Any]:
        """One after the other."""
        return first(), second()


class Replay:
    """A step, which is recorded by its first call."""

    def __init__(self, run: Callable[[], Any]) -> None:
        self._run = run
        self._recording: Recording | None = None

    def __call__(self) -> Any:
        """Runs the step; returns what it returned when it was recorded."""
        if self._recording is not None:
            return self._recording.replay()
        recording = Recording()
        STATE.recorder = recording
        try:
            with recording:
                recording.result = self._run()
        finally:
            STATE.recorder = None
        recording.close()
        self._recording = recording
        return recording.result


class Recording(TorchDispatchMode):
    """What a step did, in order. All tensors that it made are kept, where kernels find them again.

    Attributes:
        result: what the step returned, in these tensors.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.result: Any = None
        self._kept: list[Any] = []
        self._parts: list[Callable[[], object]] = []
        self._calls: list[tuple[Kernel, tuple[Any, ...]]] = []
        self._replay = library().replay

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch would import its compiler, which takes a second and 90 MB, to keep it away from this class."""
        return False

    def replay(self) -> Any:
        """Does all of it again."""
        for part in self._parts:
            part()
        return self.result

    def called(self, kernel: Kernel, args: tuple[Any, ...]) -> None:
        """As :class:`llmk_cpu.native.library.Recorder` says."""
        self._calls.append((kernel, args))

    def close(self) -> None:
        """Ends a run of kernels."""
        if self._calls:
            self._parts.append(_together(self._calls, self._replay))
            self._calls = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _looks(func):
            why = f"a recorded step can't look at values on the host, as {func.overloadpacket} does"
            raise RuntimeError(f"{why}; its kernel must be declared with capture='none'")
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        self._kept.append((args, kwargs, found))
        again = partial(func, *args, **kwargs)
        if func._schema.is_mutable:
            self._add(again)
        elif func.overloadpacket not in _ALLOCATIONS:
            tensors, given = _tensors(found), {_memory(each) for each in _tensors((args, kwargs))}
            if not all(_memory(each) in given for each in tensors):  # else they are views
                copies = None if kwargs else native_copy(func, args, found)
                if copies is not None:
                    self._calls += copies
                else:
                    self._add(_into(func, args, kwargs, found) or partial(_compute, again, tensors))
        return found

    def _add(self, part: Callable[[], object]) -> None:
        self.close()
        self._parts.append(part)


def _looks(func: Any) -> bool:
    """Whether an operator's result on the host depends on values: a replay would have that of the recording. Torch does
    not tag ``is_nonzero``."""
    return func is torch.ops.aten.is_nonzero.default or torch.Tag.data_dependent_output in func.tags


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _memory(tensor: Tensor) -> int:
    """What is equal for a tensor and its views. An operator's schema doesn't say, as some make either."""
    return id(tensor) if tensor.is_mkldnn else tensor.untyped_storage()._cdata


def _into(func: Any, args: Any, kwargs: Any, found: Any) -> Callable[[], object] | None:
    """What computes the tensor ``found`` again where it is; ``None`` where torch has no such version of an operator, or
    the shape depends on values."""
    if not isinstance(found, Tensor) or torch.Tag.dynamic_output_shape in func.tags:
        return None
    packet, taken = func.overloadpacket, _arguments(func)
    several = (getattr(packet, name) for name in packet.overloads() if name.endswith("out"))
    out = next((each for each in several if _arguments(each) == taken), None)
    return None if out is None else partial(out, *args, **kwargs, out=found)


def _arguments(func: Any) -> list[tuple[str, str]]:
    """Names and types of what an operator takes: a version for tensors may have the names of one for numbers."""
    return [(each.name, str(each.type)) for each in func._schema.arguments if not each.is_out]


def _compute(again: Callable[[], Any], tensors: list[Tensor]) -> None:
    """Computes ``tensors`` again, where they are. Raises RuntimeError where their shape depends on values, which others
    than these had."""
    for old, new in zip(tensors, _tensors(again()), strict=True):
        if old.shape != new.shape:
            raise RuntimeError(f"a recorded step computed {list(old.shape)} values, its replay {list(new.shape)}")
        old.copy_(new)


def _together(calls: list[tuple[Kernel, tuple[Any, ...]]], replay: Function) -> Callable[[], object]:
    """What runs kernels one after the other by one call."""
    words = array("q", [_word(*each) for kernel, args in calls for each in zip(kernel.signature, args, strict=True)])
    start, size = words.buffer_info()[0], words.itemsize
    pairs, at = array("q"), 0
    for kernel, args in calls:
        pairs.extend((kernel.address, start + at * size))
        at += len(args)

    def run() -> None:
        replay(pairs.buffer_info()[0], len(calls))
        _ = words  # whose memory the pairs point to

    return run


def _word(letter: str, value: Any) -> int:
    """An argument as the library's entries for words take it."""
    if letter == "f":
        (bits,) = struct.unpack("<i", struct.pack("<f", value))
        return int(bits)
    return int(value or 0)

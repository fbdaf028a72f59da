"""The suite of formats of checkpoints: what they claim of files of other formats, and how they refuse files that
only start like one; and what an example of the format means.

``CheckpointFormatSpec.examples`` names an :class:`~llmk_testing.format_example.FormatExample`.
"""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from llmk.api import (
    Checkpoint,
    CheckpointError,
    CheckpointFile,
    CheckpointFormatSpec,
    LlmkError,
    StoredTensor,
    Verdict,
)
from llmk.kernel.loader import load_object
from llmk_testing.bench import Bench
from llmk_testing.case import Case, Skip
from llmk_testing.format_example import FormatExample

_HEADER = json.dumps({"x": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}).encode()
_FOREIGN: dict[str, bytes] = {
    "empty": b"",
    "one byte": b"\0",
    "zeros": bytes(4096),
    "text": b"a text that says nothing\n" * 40,
    "JSON": b'{"architectures": ["SomeForCausalLM"]}',
    "an archive": b"PK\3\4" + bytes(range(256)),
    "safetensors": len(_HEADER).to_bytes(8, "little") + _HEADER + b"\0",
}
_MOST_PREFIX = 8
_MEMORY = 64 << 20
"""Bytes that a reader may take for any file, besides the file's own."""
_NUMBERS: tuple[tuple[int, Literal["little", "big"]], ...] = ((4, "little"), (4, "big"), (8, "little"), (8, "big"))
_UNKNOWN = "no_such_option"


def cases(spec: CheckpointFormatSpec, bench: Bench) -> Iterator[Case]:
    """The cases of one format."""

    def case(name: str, run: Callable[[], str | None]) -> Case:
        return Case(spec.id, "checkpoint_format", name, run)

    yield case("claims no file of another kind, with a reason", partial(_claims_nothing_else, spec))
    yield case("a file that only starts like one is refused by name", partial(_refuses_stubs, spec))
    for name, check in (
        ("an example is read as what it says", _reads),
        ("damaged files are refused by name", _refuses_damaged),
        ("changed and cut files are refused, or are inside of themselves", _takes_no_harm),
        ("any length that a file says is compared with the file's", _refuses_lengths),
        ("two checkpoints are not one", _refuses_two),
        ("options are validated where they are read", _refuses_options),
    ):
        yield case(name, partial(_tried, spec, bench, check))


def _tried(spec: CheckpointFormatSpec, bench: Bench, check: Callable[[_Tried], str | None]) -> str | None:
    if not spec.examples:
        raise Skip("the spec has no examples: an llmk_testing.format_example.FormatExample")
    example: FormatExample = load_object(spec.examples)
    read = load_object(spec.implementation, plugin=spec.id, kind="checkpoint_format")
    with TemporaryDirectory(prefix="llmk-") as folder:
        return check(_Tried(spec, example, read, folder, bench.seed))


@dataclass(frozen=True, slots=True)
class _Tried:
    """A format, its example, and a folder for files."""

    spec: CheckpointFormatSpec
    example: FormatExample
    read: Callable[..., Checkpoint]
    folder: str
    seed: int

    def found(self, data: bytes) -> tuple[Checkpoint, Sequence[StoredTensor]]:
        """What a file of these bytes is read as, with the tensors that another process would read."""
        checkpoint = self.read([_file(self.folder, data)], self.example.options)
        assert checkpoint.reader is not None, "the checkpoint has no reader"
        reader = ForkingPickler.loads(ForkingPickler.dumps(checkpoint.reader))
        reader.tokenizer()
        return checkpoint, list(reader.tensors())

    def refusal(self, data: bytes) -> str:
        """Why a file is refused; empty where it is not."""
        return _refusal(partial(self.found, data))


def _reads(tried: _Tried) -> str:
    example = tried.example
    file = _file(tried.folder, example.file)
    assert tried.spec.claims(file), f"it does not claim its own file: {tried.spec.claims(file).reasons}"
    checkpoint, tensors = tried.found(example.file)
    assert dict(checkpoint.config) == dict(example.config), f"the config is {dict(checkpoint.config)}"
    assert checkpoint.reader is not None, "the checkpoint has no reader"
    assert checkpoint.reader.tokenizer() == example.tokenizer, "the tokenizer is another one"
    found = {each.name: each for each in tensors}
    assert found.keys() == example.tensors.keys(), f"the tensors are {sorted(found)}, not {sorted(example.tensors)}"
    for name, (dtype, shape, data) in example.tensors.items():
        got = found[name]
        assert (got.dtype, got.shape) == (dtype, tuple(shape)), (
            f"{name} is {got.dtype} {got.shape}, not {dtype} {shape}"
        )
        same = got.decode is not None or example.file[got.start : got.stop] == data
        assert same, f"{name} is read from bytes {got.start} to {got.stop}, which are others"
    return f"{len(found)} tensors"


def _refuses_damaged(tried: _Tried) -> str:
    if not tried.example.damaged:
        raise Skip("the example has no damaged files")
    for what, data in tried.example.damaged.items():
        message = tried.refusal(data)
        assert message, f"a file was read as a checkpoint, although {what}"
        assert "model.bin" in message, f"where {what}, the error does not name the file: {message}"
    return f"{len(tried.example.damaged)} files"


def _takes_no_harm(tried: _Tried) -> str:
    """Bits that turned, in the half of them that describes the rest, and transfers that ended early."""
    data, generator, refused = tried.example.file, random.Random(tried.seed), 0
    cuts = [data[: len(data) * part // 16] for part in range(1, 16)] + [data[:-1]]
    changed = []
    for _ in range(200):
        at, turned = generator.randrange(min(len(data), 4096)), bytearray(data)
        turned[at] ^= 1 << generator.randrange(8)
        changed.append(bytes(turned))
    for other in (*cuts, *changed):
        refused += _harmless(tried, other)
    return f"{refused} of {len(cuts) + len(changed)} refused"


def _refuses_lengths(tried: _Tried) -> str:
    """Wherever a length may be, huge ones: what allocates or reads so much, or believes it, must not be the reader."""
    data, refused = tried.example.file, 0
    for width, order in _NUMBERS:
        for at in range(min(len(data) - width, 24)):
            number = int.from_bytes(data[at : at + width], order)
            for other in (2 ** (8 * width) - 1, 2 ** (8 * width - 1) - 1, len(data) + 1, number + 1, 0):
                changed = data[:at] + other.to_bytes(width, order) + data[at + width :]
                with _little_memory(len(data), f"where bytes {at} to {at + width} are {other:,}"):
                    refused += _harmless(tried, changed)
    return f"{refused} refused"


@contextmanager
def _little_memory(size: int, what: str) -> Iterator[None]:
    """A read of so many bytes as a file says takes them, also where the file ends before."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= _MEMORY + 64 * size, f"{what}, {peak:,} bytes are taken for a file of {size:,}"


def _harmless(tried: _Tried, data: bytes) -> bool:
    """Whether a file is refused; otherwise its tensors must be inside of it."""
    if not tried.spec.claims(_file(tried.folder, data)) or tried.refusal(data):
        return True
    for each in tried.found(data)[1]:
        inside = 0 <= each.start <= each.stop <= len(data)
        assert inside, f"{each.name} is read from bytes {each.start} to {each.stop} of {len(data)}"
    return False


def _refuses_two(tried: _Tried) -> None:
    """Each is whole, so that both can't be parts of one."""
    files = []
    for name in ("first.bin", "second.bin"):
        (Path(tried.folder) / name).write_bytes(tried.example.file)
        files.append(CheckpointFile(Path(tried.folder).resolve(), name))
    assert _refusal(partial(tried.read, files, tried.example.options)), "of two checkpoints in a folder, one was read"


def _refuses_options(tried: _Tried) -> None:
    """A checkpoint is read before the configuration is validated."""
    file, options = _file(tried.folder, tried.example.file), {**tried.example.options, _UNKNOWN: 1}
    try:
        tried.read([file], options)
    except LlmkError as error:
        message = str(error)
    else:
        raise AssertionError(f"a section with the option {_UNKNOWN}, which there is not, was taken")
    assert _UNKNOWN in message, f"the error does not name the option {_UNKNOWN}: {message}"


def _claims_nothing_else(spec: CheckpointFormatSpec) -> str:
    with TemporaryDirectory(prefix="llmk-") as folder:
        for kind, data in _FOREIGN.items():
            file = _file(folder, data)
            verdict = spec.claims(file)
            assert isinstance(verdict, Verdict), f"claims returned {type(verdict).__name__} for a file of {kind}"
            assert not verdict, f"claims a file of {kind}"
            assert verdict.reasons, f"refuses a file of {kind} without a reason"
    return f"{len(_FOREIGN)} kinds of files"


def _refuses_stubs(spec: CheckpointFormatSpec) -> str:
    """Files of the format's name and nothing behind it: many formats start with theirs."""
    read, tried = load_object(spec.implementation, plugin=spec.id, kind="checkpoint_format"), 0
    with TemporaryDirectory(prefix="llmk-") as folder:
        for start in {spec.name.encode(), spec.name.upper().encode()}:
            for end in (b"", b"\xff" * 64, bytes(4096)):
                file = _file(folder, start[:_MOST_PREFIX] + end)
                if not spec.claims(file):
                    continue
                tried += 1
                message = _refusal(partial(read, [file], {}))
                assert message, f"a file of {len(start + end)} bytes was read as a checkpoint"
                assert file.name in message, f"the error does not name the file: {message}"
    return f"{tried} files"


def _refusal(read: Callable[[], object]) -> str:
    try:
        read()
    except CheckpointError as error:
        return error.message
    return ""


def _file(folder: str, data: bytes) -> CheckpointFile:
    path = Path(folder) / "model.bin"
    path.write_bytes(data)
    return CheckpointFile(Path(folder).resolve(), path.name)

"""The suite of formats of checkpoints: what they claim of files of other formats, and how they refuse files that
only start like one; and what an example of the format means.

``CheckpointFormatSpec.examples`` names an :class:`~llmk_testing.format_example.FormatExample`.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from llmk.api import CheckpointFile, CheckpointFormatSpec, ConfigError, Verdict
from llmk.api.matching import evaluate
from llmk.kernel.interpreter import PYTHON
from llmk.kernel.loader import load_object
from llmk_testing.bench import Bench
from llmk_testing.called import without_torch
from llmk_testing.case import Case, Skip
from llmk_testing.format_example import FormatExample, unsealed
from llmk_testing.format_under_test import FILE, Tried, check_content, refusal, written
from llmk_testing.growth import little_memory
from llmk_testing.suites.checkpoint_written import WRITTEN

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
_DESCRIBED = 4096
"""Bytes at the start of a file, which mostly describe the rest."""
_MOST_NUMBERS = 60
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
        ("links out of the folder are not followed", _follows_no_links),
        ("what a file means is read without torch", _needs_no_torch),
        *WRITTEN,
    ):
        yield case(name, partial(_tried, spec, bench, check))


def _tried(spec: CheckpointFormatSpec, bench: Bench, check: Callable[[Tried], str | None]) -> str | None:
    if not spec.examples:
        raise Skip("the spec has no examples: an llmk_testing.format_example.FormatExample")
    example: FormatExample = load_object(spec.examples)
    read = load_object(spec.implementation, plugin=spec.id, kind="checkpoint_format")
    with TemporaryDirectory(prefix="llmk-") as folder:
        return check(Tried(spec, example, read, folder, bench.seed))


def _reads(tried: Tried) -> str:
    """The same again, and by a name that says nothing."""
    for name in (FILE, FILE, "ü (1)"):
        found = check_content(tried, tried.example.file, tried.example.content, name)
    return f"{found} tensors"


def _refuses_damaged(tried: Tried) -> str:
    if not tried.example.damaged:
        raise Skip("the example has no damaged files")
    for what, data in tried.example.damaged.items():
        message = tried.refusal(data)
        assert message, f"a file was read as a checkpoint, although {what}"
        assert "model.bin" in message, f"where {what}, the error does not name the file: {message}"
    return f"{len(tried.example.damaged)} files"


def _takes_no_harm(tried: Tried) -> str:
    """Bits that turned, numbers that are others, and transfers that ended early, also where the file says that they are
    right."""
    data, seal = tried.example.file, tried.example.seal
    cuts = [data[: len(data) * part // 16] for part in range(1, 16)] + [data[:-1], data + b"\0"]
    changed = [*_turned(data, tried.seed), *_renumbered(data, tried.seed)]
    made = [*cuts, *changed, *([] if seal is unsealed else (seal(each) for each in (*cuts, *changed)))]
    refused = sum(tried.is_harmless(each) for each in made)
    return f"{refused} of {len(made)} refused"


def _turned(data: bytes, seed: int) -> Iterator[bytes]:
    """With a bit that turned, in what describes the rest."""
    generator = random.Random(seed)
    for _ in range(200):
        at, turned = generator.randrange(min(len(data), _DESCRIBED)), bytearray(data)
        turned[at] ^= 1 << generator.randrange(8)
        yield bytes(turned)


def _renumbered(data: bytes, seed: int) -> Iterator[bytes]:
    """With another number where a number stands as text: also with the one before it, so that nothing is between."""
    runs = list(re.finditer(rb"\d+", data[:_DESCRIBED]))
    pairs = list(zip([*runs[:1], *runs], runs, strict=False))
    for last, run in random.Random(seed).sample(pairs, min(len(pairs), _MOST_NUMBERS)):
        length, number = len(run[0]), int(run[0])
        texts = (last[0], b"9" * length, b"%d" % (number + 1), b"%d" % max(0, number - 1), b"0", b"-1", b"0.")
        for text in texts:
            if len(text) <= length and text != run[0]:
                yield data[: run.start()] + text.ljust(length) + data[run.end() :]


def _refuses_lengths(tried: Tried) -> str:
    """Wherever a length may be, huge ones: what allocates or reads so much, or believes it, must not be the reader."""
    data, refused = tried.example.file, 0
    for width, order in _NUMBERS:
        for at in range(min(len(data) - width, 24)):
            number = int.from_bytes(data[at : at + width], order)
            for other in (2 ** (8 * width) - 1, 2 ** (8 * width - 1) - 1, len(data) + 1, number + 1, 0):
                changed = data[:at] + other.to_bytes(width, order) + data[at + width :]
                with little_memory(
                    _MEMORY + 64 * len(data), f"where bytes {at} to {at + width} are {other:,}, readers"
                ):
                    refused += tried.is_harmless(changed)
    return f"{refused} refused"


def _refuses_two(tried: Tried) -> None:
    """Each is whole, so that both can't be parts of one."""
    files = []
    for name in ("first.bin", "second.bin"):
        (Path(tried.folder) / name).write_bytes(tried.example.file)
        files.append(CheckpointFile(Path(tried.folder).resolve(), name))
    assert refusal(partial(tried.read, files, tried.example.options)), "of two checkpoints in a folder, one was read"


def _refuses_options(tried: Tried) -> None:
    """A checkpoint is read before the configuration is validated."""
    file, options = tried.file(tried.example.file), {**tried.example.options, _UNKNOWN: 1}
    try:
        tried.read([file], options)
    except ConfigError as error:
        message = str(error)
    else:
        raise AssertionError(f"a section with the option {_UNKNOWN}, which there is not, was taken")
    assert _UNKNOWN in message, f"the error does not name the option {_UNKNOWN}: {message}"


def _follows_no_links(tried: Tried) -> None:
    """Neither one that is there at first, nor one that takes the file's place later."""
    example, folder = tried.example, Path(tried.folder) / "inside"
    folder.mkdir()
    outside, link = tried.file(example.file, "outside.bin"), folder / FILE
    link.symlink_to(outside.path)
    file = CheckpointFile(folder.resolve(), FILE)
    found = evaluate(tried.spec.claims, file)
    assert not found, "it claims what is a link to a file outside of the folder"
    assert refusal(lambda: tried.read([file], example.options)), "a link to a file outside of the folder was followed"
    link.unlink()
    shutil.copy(outside.path, link)
    reader = tried.read([file], example.options).reader
    assert reader is not None, "the checkpoint has no reader"
    link.unlink()
    link.symlink_to(outside.path)
    for name, ask in (("tensors", reader.tensors), ("tokenizer", reader.tokenizer)):
        assert refusal(ask), f"its reader's {name} followed a link to a file outside of the folder"


def _needs_no_torch(tried: Tried) -> None:
    """``llmk explain`` reads what a model is on machines that have none."""
    tried.file(tried.example.file)
    job = json.dumps([tried.spec.implementation, tried.folder, FILE, dict(tried.example.options)])
    with without_torch("reading what a checkpoint means") as environ:
        command = [*PYTHON, "-m", "llmk_testing.format_reading", job]
        done = subprocess.run(command, env={**os.environ, **environ}, capture_output=True, text=True)
    assert done.returncode == 0, f"without torch, it can't be read: {done.stderr.strip()[-1500:]}"


def _claims_nothing_else(spec: CheckpointFormatSpec) -> str:
    with TemporaryDirectory(prefix="llmk-") as folder:
        for kind, data in _FOREIGN.items():
            file = written(folder, data)
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
                file = written(folder, start[:_MOST_PREFIX] + end)
                if not spec.claims(file):
                    continue
                tried += 1
                message = refusal(partial(read, [file], {}))
                assert message, f"a file of {len(start + end)} bytes was read as a checkpoint"
                assert file.name in message, f"the error does not name the file: {message}"
    return f"{tried} files"

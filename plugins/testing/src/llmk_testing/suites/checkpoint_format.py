"""The suite of formats of checkpoints: what they claim of files of other formats, and how they refuse files that
only start like one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from llmk.api import CheckpointError, CheckpointFile, CheckpointFormatSpec, Verdict
from llmk.kernel.loader import load_object
from llmk_testing.bench import Bench
from llmk_testing.case import Case

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


def cases(spec: CheckpointFormatSpec, bench: Bench) -> Iterator[Case]:
    """The cases of one format."""

    def case(name: str, run: Callable[[], str | None]) -> Case:
        return Case(spec.id, "checkpoint_format", name, run)

    yield case("claims no file of another kind, with a reason", partial(_claims_nothing_else, spec))
    yield case("a file that only starts like one is refused by name", partial(_refuses_stubs, spec))


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

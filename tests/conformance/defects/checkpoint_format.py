"""A format of checkpoints, and ways to get one wrong.

``ACME``, the length of a header (4 bytes), the header as JSON with all texts and where tensors are, then the tensors,
plain or with all bits turned.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar

from defects import Defect
from llmk.api import (
    OK,
    Checkpoint,
    CheckpointError,
    CheckpointFile,
    CheckpointReader,
    ConfigError,
    StoredTensor,
    Verdict,
    no,
    parse_json,
)
from llmk_testing.format_example import FormatContent, FormatExample

if TYPE_CHECKING:
    from torch import Tensor

SIZES = {"F32": 4, "F16": 2, "BF16": 2, "I8": 1, "U8": 1}
TEXTS = ("config", "generation_config", "tokenizer_config", "chat_template", "tokenizer")


def written(content: FormatContent, *, turned: bool, **changed: Any) -> bytes | None:
    """A file; ``changed`` are entries of its header."""
    data, tensors = b"", {}
    for name, (dtype, shape, values) in content.tensors.items():
        if dtype not in (*SIZES, "F31") or (turned and not shape):
            return None
        tensors[name] = [dtype, list(shape), len(data), len(data) + len(values), turned]
        data += bytes(each ^ 255 for each in values) if turned else values
    header = {**asdict(content), "tensors": tensors, "size": len(data), **changed}
    text = json.dumps(header, ensure_ascii=False).encode()
    return b"ACME" + len(text).to_bytes(4, "little") + text + data


def of_another_program(content: FormatContent) -> bytes | None:
    """A file as another program writes it: the last tensor first, gaps between tensors, and a field of its own."""
    data, tensors = b"", {}
    for name, (dtype, shape, values) in reversed(content.tensors.items()):
        if dtype not in SIZES:
            return None
        tensors[name] = [dtype, list(shape), len(data), len(data) + len(values), False]
        data += values + bytes(3)
    header = {"made_by": "another program", "tensors": tensors, "size": len(data)}
    text = json.dumps(asdict(content) | header, indent=1).encode()
    return b"ACME" + len(text).to_bytes(4, "little") + text + data


def sealed(data: bytes) -> bytes:
    """The right size in the header, if that can be read."""
    try:
        header, base = (
            json.loads(data[8 : 8 + int.from_bytes(data[4:8], "little")]),
            int.from_bytes(data[4:8], "little"),
        )
    except ValueError:
        return data
    text = json.dumps({**header, "size": len(data) - 8 - base}).encode() if isinstance(header, dict) else b"[]"
    return b"ACME" + len(text).to_bytes(4, "little") + text + data[8 + base :]


CONTENT = FormatContent(
    {"architectures": ["ToyForCausalLM"]},
    {"a": ("U8", (2, 2), b"data"), "b": ("F16", (3,), b"values")},
    '{"a": "é"}',
    {"top_k": 7},
    {"eos_token": "a"},
    "{{ a }}",
)
WRITE = (partial(written, turned=False), partial(written, turned=True))
_FILE = written(CONTENT, turned=False)
assert _FILE is not None
EXAMPLE = FormatExample(
    _FILE,
    CONTENT,
    {"it is not complete": written(CONTENT, turned=False, tensors=[]) or b""},
    write=WRITE,
    tools={"another program": of_another_program},
    seal=sealed,
)


@dataclass(frozen=True)
class Turned:
    """Turns the bits of all bytes."""

    dtype: str
    columns: tuple[int, ...]
    broken: str = ""
    multiple: int = 1
    shared: ClassVar[list[Any]] = []

    def __call__(self, stored: Tensor) -> Tensor:
        import torch

        dtypes = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I8": torch.int8}
        dtype = dtypes.get(self.dtype, torch.uint8)
        if self.broken == "half" and dtype == torch.float16:
            dtype = torch.bfloat16
        values = (255 - stored).view(-1)
        if self.broken == "threads":
            self.shared[:] = [values]
            _pause()
            values = self.shared[0]
        if self.broken == "rest" and len(values) % 8:
            values[-(len(values) % 8) :] = 0
        if not len(values):
            return torch.empty((len(stored), *self.columns), dtype=dtype)
        found = values.view(dtype).view(len(stored), *self.columns)
        return found.squeeze(-1) if self.broken == "squeezed" and found.dim() > 1 else found


def _pause() -> None:
    import time

    time.sleep(0.002)


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands twice")
    return found


@dataclass(frozen=True)
class Reader:
    """Of the kind of mistake that ``broken`` names; ``content`` is what some keep."""

    file: CheckpointFile
    broken: str = ""
    content: str = ""

    def open(self) -> BinaryIO:
        return self.file.path.open("rb") if self.broken == "links" else self.file.open()

    def header(self) -> tuple[dict[str, Any], int]:
        with self.open() as stream:
            first = stream.read(8)
            length, size = int.from_bytes(first[4:], "little"), self.file.path.stat().st_size
            if len(first) < 8 or first[:4] != b"ACME" or length > size:
                raise self.damaged("it has no header")
            data = stream.read() if self.broken == "whole" else stream.read(length)
        try:
            text = data[:length].decode("latin-1" if self.broken == "latin" else "utf-8")
            header = parse_json(text, object_pairs_hook=dict if self.broken == "doubled" else _once)
        except ValueError as error:
            raise self.damaged("it has no JSON") from error
        if not isinstance(header, dict) or header.get("size") != size - 8 - length:
            raise self.damaged("it is cut")
        if self.broken == "known" and not header.keys() <= {*TEXTS, "tensors", "size"}:
            raise self.damaged("a field is unknown")
        if not all(isinstance(header.get(key), str | dict | None) for key in TEXTS):
            raise self.damaged("a text is none")
        return header, 8 + length

    def damaged(self, why: str) -> CheckpointError:
        return CheckpointError(f"{self.file} is damaged: {why}", hint="copy it again")

    def tensors(self) -> Sequence[StoredTensor]:
        header, base = self.header()
        if not isinstance(header.get("tensors"), dict):
            raise self.damaged("it has no tensors")
        found = [self.tensor(base, header["size"], name, entry) for name, entry in header["tensors"].items()]
        return found[:-1] if self.broken == "last" else found

    def tensor(self, base: int, most: int, name: str, entry: Any) -> StoredTensor:
        try:
            dtype, shape, start, stop, turned = entry
            numbers = [*shape, start, stop]
        except (TypeError, ValueError) as error:
            raise self.damaged(f"{name!a} is no tensor") from error
        if dtype not in SIZES or not all(type(each) is int and each >= 0 for each in numbers):
            raise self.damaged(f"{name!a} is no tensor")
        most = stop if self.broken == "unbounded" else most
        needed = prod(shape) * SIZES[dtype]
        needed = needed % 2**64 if self.broken == "wraps" else needed
        if not start <= stop <= most or needed != stop - start:
            raise self.damaged(f"{name!a} has other bytes")
        if self.broken == "scalars" and not shape:
            raise self.damaged(f"{name!a} has no shape")
        decode = Turned(dtype, tuple(shape[1:]), self.broken) if turned is True else None
        more = self.broken == "size"
        return StoredTensor(name, self.file, dtype, tuple(shape), base + start, base + stop + more, decode)

    def tokenizer(self) -> str:
        text = self.header()[0].get("tokenizer")
        if not isinstance(text, str):
            raise self.damaged("it has no tokenizer")
        return "[]" if self.broken == "tokenizer" else text


class Good:
    """``claims`` is the spec's; the class itself stands for what the spec names."""

    @staticmethod
    def claims(file: CheckpointFile) -> Verdict:
        with file.open() as stream:
            return OK if stream.read(4) == b"ACME" else no("magic", wanted="ACME")

    broken = ""

    @classmethod
    def read(cls, files: Sequence[CheckpointFile], options: Mapping[str, Any]) -> Checkpoint:
        if options and cls.broken != "options":
            raise ConfigError(f"there are no options {list(options)}")
        if len(files) > 1 and cls.broken != "first":
            raise CheckpointError(f"{files[0].folder} has several")
        reader = Reader(files[0], cls.broken)
        header, _ = reader.header()
        reader.tokenizer()
        reader.tensors()
        configs = {key: header.get(key) for key in TEXTS[:3]}
        if not all(isinstance(each, dict) for each in configs.values()):
            raise reader.damaged("a config is none")
        template = header.get("chat_template")
        if isinstance(template, dict):
            raise reader.damaged("its template is none")
        kept = json.dumps(header) if cls.broken == "keeps" else ""
        made: CheckpointReader = replace(reader, content=kept)
        return cls.made(Checkpoint(files[0].path, **configs, chat_template=template, reader=made), header["size"])  # type: ignore[arg-type]

    @classmethod
    def made(cls, found: Checkpoint, size: int) -> Checkpoint:
        return replace(found, weight_bytes=size)


class LastByte(Good):
    broken = "size"


class OtherTokenizer(Good):
    broken = "tokenizer"


class FirstOfTwo(Good):
    broken = "first"


class AnyOptions(Good):
    broken = "options"


class Unbounded(Good):
    broken = "unbounded"


class KnownFields(Good):
    broken = "known"


class Wraps(Good):
    broken = "wraps"


class LastOfTwo(Good):
    broken = "doubled"


class NoScalars(Good):
    broken = "scalars"


class HalfAsBrain(Good):
    broken = "half"


class Rest(Good):
    broken = "rest"


class Squeezed(Good):
    broken = "squeezed"


class SharedByThreads(Good):
    broken = "threads"


class LatinOne(Good):
    broken = "latin"


class LastTensor(Good):
    broken = "last"


class KeepsContent(Good):
    broken = "keeps"


class WholeFile(Good):
    broken = "whole"


class FollowsLinks(Good):
    broken = "links"

    @staticmethod
    def claims(file: CheckpointFile) -> Verdict:
        return OK if file.path.read_bytes()[:4] == b"ACME" else no("magic", wanted="ACME")


class NoGenerationConfig(Good):
    @classmethod
    def made(cls, found: Checkpoint, size: int) -> Checkpoint:
        return replace(found, weight_bytes=size, generation_config={})


class DropsZeros(Good):
    @classmethod
    def made(cls, found: Checkpoint, size: int) -> Checkpoint:
        kept = {key: value for key, value in found.generation_config.items() if value}
        return replace(found, weight_bytes=size, generation_config=kept)


class NeedsAnEnd(Good):
    @classmethod
    def made(cls, found: Checkpoint, size: int) -> Checkpoint:
        assert found.tokenizer_config["eos_token"]
        return replace(found, weight_bytes=size)


class NoTemplate(Good):
    @classmethod
    def made(cls, found: Checkpoint, size: int) -> Checkpoint:
        return replace(found, weight_bytes=size, chat_template=None)


class NoWeights(Good):
    @classmethod
    def made(cls, found: Checkpoint, size: int) -> Checkpoint:
        return found


class WithTorch(Good):
    @classmethod
    def made(cls, found: Checkpoint, size: int) -> Checkpoint:
        import torch

        return replace(found, weight_bytes=size or torch.iinfo(torch.int8).min)


class Reserving(Good):
    """Makes room for as many bytes as the file says."""

    @classmethod
    def read(cls, files: Sequence[CheckpointFile], options: Mapping[str, Any]) -> Checkpoint:
        bytearray(min(int.from_bytes(files[0].read(1 << 30)[4:8], "little"), 1 << 28))
        return super().read(files, options)


class OtherError(Good):
    """Of an unknown option."""

    @classmethod
    def read(cls, files: Sequence[CheckpointFile], options: Mapping[str, Any]) -> Checkpoint:
        try:
            return super().read(files, options)
        except ConfigError as error:
            raise CheckpointError(error.message) from error


class Greedy(Good):
    @staticmethod
    def claims(file: CheckpointFile) -> Verdict:
        return OK


class Silent(Good):
    @staticmethod
    def claims(file: CheckpointFile) -> Verdict:
        return OK if file.read(1 << 20).startswith(b"ACME") else Verdict(ok=False)


class Trusting(Good):
    @classmethod
    def read(cls, files: Sequence[CheckpointFile], options: Mapping[str, Any]) -> Checkpoint:
        return Checkpoint(path=files[0].path, config={"size": 4}, reader=Empty())


class Empty:
    def tensors(self) -> Sequence[StoredTensor]:
        return []

    def tokenizer(self) -> str:
        return "{}"


class Believing(Good):
    @staticmethod
    def read(files: Sequence[CheckpointFile], options: Mapping[str, Any]) -> Checkpoint:
        return Checkpoint(path=files[0].path, config={}, reader=Reader(files[0]))


class Nameless(Good):
    @staticmethod
    def read(files: Sequence[CheckpointFile], options: Mapping[str, Any]) -> Checkpoint:
        raise CheckpointError("something is wrong")


class Crashing(Good):
    @staticmethod
    def read(files: Sequence[CheckpointFile], options: Mapping[str, Any]) -> Checkpoint:
        return {"ACME": Checkpoint(path=Path(), config={})}[files[0].read(1 << 20).decode("latin-1")]


READ = "read as what it says"
TENSORS = "tensors of every dtype and shape"
TEXT = "any texts are read"
DEFECTS = (
    Defect("last byte", "a tensor has a byte too many", LastByte, READ),
    Defect("tokenizer", "the tokenizer is another one", OtherTokenizer, READ),
    Defect("no template", "the chat template is not handed on", NoTemplate, READ),
    Defect("no generation config", "the generation config is not handed on", NoGenerationConfig, READ),
    Defect("no weights", "the size of the weights is 0", NoWeights, READ),
    Defect("last tensor", "the last tensor is left out", LastTensor, READ),
    Defect("first of two", "of two checkpoints, the first is read", FirstOfTwo, "two checkpoints"),
    Defect("options", "options that there are not are ignored", AnyOptions, "options are validated"),
    Defect("other error", "an unknown option is an error of the checkpoint", OtherError, "options are validated"),
    Defect("unbounded", "a tensor may end behind the file", Unbounded, "changed and cut files"),
    Defect("reserving", "room is made for what the file says", Reserving, "any length that a file says"),
    Defect("links", "links out of the folder are followed", FollowsLinks, "links out of the folder"),
    Defect("with torch", "torch is imported where only metadata is read", WithTorch, "without torch"),
    Defect("scalars", "tensors without dimensions are refused", NoScalars, TENSORS),
    Defect("half", "float16 is decoded as bfloat16", HalfAsBrain, TENSORS),
    Defect("rest", "bytes that 8 does not divide are left as they are", Rest, TENSORS),
    Defect("squeezed", "a dimension of 1 is lost", Squeezed, TENSORS),
    Defect("latin", "texts are decoded as Latin 1", LatinOne, TEXT),
    Defect("zeros", "a token 0 counts as none", DropsZeros, TEXT),
    Defect("needs an end", "a token that ends texts is taken to be named", NeedsAnEnd, TEXT),
    Defect("threads", "threads that decode share a buffer", SharedByThreads, "by several threads"),
    Defect("wraps", "the bytes of a shape are counted in 64 bits", Wraps, "not as long as its shape says"),
    Defect("grown", "a tensor's end is believed, where all of a header agrees", Unbounded, "not as long as its shape"),
    Defect("doubled", "of two tensors of one name, the last is read", LastOfTwo, "not as long as its shape says"),
    Defect("known", "fields that are not known are refused", KnownFields, "what other programs write"),
    Defect("keeps", "the reader keeps what the file says", KeepsContent, "read without its tensors"),
    Defect("whole", "the whole file is read for its header", WholeFile, "read without its tensors"),
    Defect("damaged", "damaged files are read", Trusting, "damaged files"),
    Defect("greedy", "files of other kinds are claimed", Greedy, "claims no file"),
    Defect("silent", "files are refused without a reason", Silent, "claims no file"),
    Defect("believing", "a file is believed to be whole", Believing, "only starts like one"),
    Defect("nameless", "the error does not name the file", Nameless, "only starts like one"),
    Defect("crashing", "another exception than CheckpointError is raised", Crashing, "only starts like one"),
)

"""A format of checkpoints, and ways to get one wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from defects import Defect
from llmk.api import OK, Checkpoint, CheckpointError, CheckpointFile, ConfigError, StoredTensor, Verdict, no
from llmk_testing.format_example import FormatExample

EXAMPLE = FormatExample(
    b"ACMEcomplete\x04data",
    {"size": 4},
    {"a": ("U8", (4,), b"data")},
    "{}",
    {"it is not complete": b"ACMEcomplexe\x04data"},
)


@dataclass(frozen=True)
class Reader:
    """Of the kind of mistake that ``broken`` names."""

    file: CheckpointFile
    broken: str = ""

    def tensors(self) -> Sequence[StoredTensor]:
        size = self.file.read(1 << 20)[12] + (self.broken == "size")
        if 13 + size > self.file.size and not self.broken:
            raise CheckpointError(f"{self.file} is cut", hint="copy it again")
        return [StoredTensor("a", self.file, "U8", (size,), 13, 13 + size)]

    def tokenizer(self) -> str:
        return "[]" if self.broken == "tokenizer" else "{}"


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
        data = files[0].read(1 << 20)
        if data[4:12] != b"complete" or len(data) < 13:
            raise CheckpointError(f"{files[0]} is not complete", hint="copy it again")
        return Checkpoint(path=files[0].path, config={"size": data[12]}, reader=Reader(files[0], cls.broken))


class Trusting(Good):
    @classmethod
    def read(cls, files: Sequence[CheckpointFile], options: Mapping[str, Any]) -> Checkpoint:
        return Checkpoint(path=files[0].path, config={"size": 4}, reader=Reader(files[0]))


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


class Reserving(Good):
    """Makes room for as many bytes as the file says."""

    @classmethod
    def read(cls, files: Sequence[CheckpointFile], options: Mapping[str, Any]) -> Checkpoint:
        made = super().read(files, options)
        bytearray(made.config["size"] << 20)
        return made


class Greedy(Good):
    @staticmethod
    def claims(file: CheckpointFile) -> Verdict:
        return OK


class Silent(Good):
    @staticmethod
    def claims(file: CheckpointFile) -> Verdict:
        return OK if file.read(1 << 20).startswith(b"ACME") else Verdict(ok=False)


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
        return {"ACME": Checkpoint(path=files[0].path, config={})}[files[0].read(1 << 20).decode()]


DEFECTS = (
    Defect("last byte", "a tensor has a byte too many", LastByte, "read as what it says"),
    Defect("tokenizer", "the tokenizer is another one", OtherTokenizer, "read as what it says"),
    Defect("first of two", "of two checkpoints, the first is read", FirstOfTwo, "two checkpoints"),
    Defect("options", "options that there are not are ignored", AnyOptions, "options are validated"),
    Defect("unbounded", "a tensor may end behind the file", Unbounded, "changed and cut files"),
    Defect("reserving", "room is made for what the file says", Reserving, "any length that a file says"),
    Defect("damaged", "damaged files are read", Trusting, "damaged files"),
    Defect("greedy", "files of other kinds are claimed", Greedy, "claims no file"),
    Defect("silent", "files are refused without a reason", Silent, "claims no file"),
    Defect("believing", "a file is believed to be whole", Believing, "only starts like one"),
    Defect("nameless", "the error does not name the file", Nameless, "only starts like one"),
    Defect("crashing", "another exception than CheckpointError is raised", Crashing, "only starts like one"),
)

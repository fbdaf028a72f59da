"""A format of checkpoints, and ways to get one wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from defects import Defect
from llmk.api import OK, Checkpoint, CheckpointError, CheckpointFile, StoredTensor, Verdict, no


@dataclass(frozen=True)
class Reader:
    def tensors(self) -> Sequence[StoredTensor]:
        return []

    def tokenizer(self) -> str:
        return "{}"


class Good:
    """``claims`` is the spec's; the class itself stands for what the spec names."""

    @staticmethod
    def claims(file: CheckpointFile) -> Verdict:
        with file.open() as stream:
            return OK if stream.read(4) == b"ACME" else no("magic", wanted="ACME")

    @staticmethod
    def read(files: Sequence[CheckpointFile], options: Mapping[str, Any]) -> Checkpoint:
        data = files[0].read(1 << 20)
        if data[4:12] != b"complete":
            raise CheckpointError(f"{files[0]} is not complete", hint="copy it again")
        return Checkpoint(path=files[0].path, config={}, reader=Reader())


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
        return Checkpoint(path=files[0].path, config={}, reader=Reader())


class Nameless(Good):
    @staticmethod
    def read(files: Sequence[CheckpointFile], options: Mapping[str, Any]) -> Checkpoint:
        raise CheckpointError("something is wrong")


class Crashing(Good):
    @staticmethod
    def read(files: Sequence[CheckpointFile], options: Mapping[str, Any]) -> Checkpoint:
        return {"ACME": Checkpoint(path=files[0].path, config={})}[files[0].read(1 << 20).decode()]


DEFECTS = (
    Defect("greedy", "files of other kinds are claimed", Greedy, "claims no file"),
    Defect("silent", "files are refused without a reason", Silent, "claims no file"),
    Defect("believing", "a file is believed to be whole", Believing, "only starts like one"),
    Defect("nameless", "the error does not name the file", Nameless, "only starts like one"),
    Defect("crashing", "another exception than CheckpointError is raised", Crashing, "only starts like one"),
)

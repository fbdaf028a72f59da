"""A format of checkpoints under test: what its files are read as, and why they are refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

from llmk.api import Checkpoint, CheckpointError, CheckpointFile, CheckpointFormatSpec, StoredTensor
from llmk.nn.tensor_file import DTYPE_BITS
from llmk.planning.checkpoint.fields import check_config, check_generation_config, check_tokenizer_config
from llmk_testing.format_example import FormatContent, FormatExample
from llmk_testing.stored_values import check_values

FILE = "model.bin"


@dataclass(frozen=True, slots=True)
class Tried:
    """A format, its example, and a folder for files."""

    spec: CheckpointFormatSpec
    example: FormatExample
    read: Callable[..., Checkpoint]
    folder: str
    seed: int

    def file(self, data: bytes, name: str = FILE) -> CheckpointFile:
        """A file of these bytes."""
        return written(self.folder, data, name)

    def found(self, data: bytes, name: str = FILE) -> tuple[Checkpoint, Sequence[StoredTensor]]:
        """What a file of these bytes is read as, with the tensors that another process would read."""
        checkpoint = self.read([self.file(data, name)], self.example.options)
        assert checkpoint.reader is not None, "the checkpoint has no reader"
        reader = ForkingPickler.loads(ForkingPickler.dumps(checkpoint.reader))
        reader.tokenizer()
        return checkpoint, list(reader.tensors())

    def refusal(self, data: bytes) -> str:
        """Why a file is refused; empty where it is not."""
        return refusal(lambda: self.found(data))

    def is_harmless(self, data: bytes) -> bool:
        """Whether a file is refused; otherwise its tensors must be inside of it, and as long as they say."""
        if not self.spec.claims(self.file(data)) or self.refusal(data):
            return True
        for each in self.found(data)[1]:
            inside = 0 <= each.start <= each.stop <= len(data)
            assert inside, f"{each.name} is read from bytes {each.start} to {each.stop} of {len(data)}"
            check_size(each)
        return False


def check_size(stored: StoredTensor) -> None:
    """Raises AssertionError where a shape can't be, or a tensor that is not decoded has other bytes than its shape."""
    assert all(size >= 0 for size in stored.shape), f"{stored.name} has the shape {stored.shape}"
    if stored.decode is None:
        needed = -(-prod(stored.shape) * DTYPE_BITS[stored.dtype] // 8)
        assert stored.num_bytes == needed, (
            f"{stored.name} is {stored.dtype} {stored.shape}, which takes {needed} bytes, and has {stored.num_bytes}"
        )


def check_content(tried: Tried, data: bytes, content: FormatContent, name: str = FILE) -> int:
    """Reads a file, and compares all that is read with its content. Returns the number of tensors."""
    file = tried.file(data, name)
    assert tried.spec.claims(file), f"it does not claim its own file: {tried.spec.claims(file).reasons}"
    checkpoint, tensors = tried.found(data, name)
    assert checkpoint.reader is not None
    _check_texts(checkpoint, content)
    assert checkpoint.reader.tokenizer() == content.tokenizer, "the tokenizer is another one"
    names = [each.name for each in tensors]
    assert len(set(names)) == len(names), f"tensors are named twice: {names}"
    found = {each.name: each for each in tensors}
    assert found.keys() == content.tensors.keys(), f"the tensors are {sorted(found)}, not {sorted(content.tensors)}"
    for each, (dtype, shape, values) in content.tensors.items():
        got = found[each]
        assert (got.dtype, got.shape) == (dtype, tuple(shape)), (
            f"{each} is {got.dtype} {got.shape}, not {dtype} {shape}"
        )
        check_size(got)
        check_values(got, (dtype, shape, values))
    least, most = sum(each.num_bytes for each in tensors), len(data)
    assert least <= checkpoint.weight_bytes <= most, (
        f"weight_bytes is {checkpoint.weight_bytes:,}, and the tensors have {least:,} of the file's {most:,} bytes"
    )
    return len(found)


def _check_texts(checkpoint: Checkpoint, content: FormatContent) -> None:
    """The chat template counts where :class:`Checkpoint` has it; ``tokenizer_config`` may have it, too."""
    tokenizer_config = {key: value for key, value in checkpoint.tokenizer_config.items() if key != "chat_template"}
    for name, found, wanted in (
        ("config", dict(checkpoint.config), dict(content.config)),
        ("generation_config", dict(checkpoint.generation_config), dict(content.generation_config)),
        ("tokenizer_config", tokenizer_config, dict(content.tokenizer_config)),
        ("chat_template", checkpoint.chat_template, content.chat_template),
    ):
        assert found == wanted, f"{name} is {str(found)[:300]}, not {str(wanted)[:300]}"
    check_config(checkpoint.path, checkpoint.config)
    check_generation_config(checkpoint.path, checkpoint.generation_config, checkpoint.config)
    check_tokenizer_config(checkpoint.path, checkpoint.tokenizer_config)


def written(folder: str, data: bytes, name: str = FILE) -> CheckpointFile:
    """A file of these bytes in a folder. It replaces one that is there, which may be a link."""
    path = Path(folder) / name
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    return CheckpointFile(Path(folder).resolve(), path.name)


def refusal(read: Callable[[], object]) -> str:
    """Why a file is refused by ``CheckpointError``; empty where it is not."""
    try:
        read()
    except CheckpointError as error:
        return error.message
    return ""

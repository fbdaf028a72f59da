"""A checkpoint's metadata, read from its small files only: no tensor is loaded, and torch is not needed."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from math import prod
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from llmk.api.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

LONGEST_JSON = 64 << 20
"""Limit of a JSON file, in bytes. The largest index files of published checkpoints have about 10 MiB."""

LONGEST_TEMPLATE = 4 << 20
"""Limit of a chat template, in bytes. Published ones have about 20 KiB."""

DEEPEST_JSON = 64
"""Limit of nested lists and objects in JSON."""

_TOO_DEEP = f"it is nested deeper than {DEEPEST_JSON} levels"
_AGAIN = "download or copy the file again"
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_SHA1_OR_SHA256 = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, order=True)
class CheckpointFile:
    """A file of a checkpoint, which may not exist: ``name``, with slashes, relative to ``folder``.

    It is opened only if it is a regular file that, with all links resolved, is inside the folder. The only exception is
    a snapshot of a Hugging Face hub cache, whose files are links to ``blobs/<hash>`` of the same repository.

    All methods raise :class:`~llmk.api.CheckpointError`, whose message reveals nothing about files outside the folder.
    """

    folder: Path
    name: str

    def __post_init__(self) -> None:
        place = PurePosixPath(self.name)
        if not place.parts or place.is_absolute() or ".." in place.parts or not self.name.isprintable():
            raise CheckpointError(
                f"{self.folder} refers to a file {self.name!a}, which is not a valid name of a file in it",
                hint="names must be relative paths inside the checkpoint's folder; check where the checkpoint is from",
            )

    def __str__(self) -> str:
        return str(self.path)

    @property
    def path(self) -> Path:
        """The file's path. To read the file, use the methods, which check it."""
        return self.folder / self.name

    @property
    def is_there(self) -> bool:
        """Whether the path exists, as a file or anything else."""
        return os.path.lexists(self.path)

    @property
    def size(self) -> int:
        """The file's size in bytes."""
        with self.open() as stream:
            return os.fstat(stream.fileno()).st_size

    def open(self) -> BinaryIO:
        """The file, opened for reading."""
        real = Path(os.path.realpath(self.path))
        root = _root_of(real, Path(os.path.realpath(self.folder)))
        if root is None:
            raise CheckpointError(
                f"{self} is a link to a file outside the checkpoint's folder, so it is not read",
                hint="replace the link with a copy of the file; only links from a hub cache's snapshot to its blobs are"
                " followed",
            )
        try:
            return _open_below(root, real.relative_to(root).parts)
        except OSError as error:
            raise CheckpointError(f"{self} can't be read: {error.strerror}", hint=_AGAIN) from error

    def read(self, most: int) -> bytes:
        """The file's content; an error if it is longer than ``most`` bytes."""
        with self.open() as stream:
            data = stream.read(most + 1)
        if len(data) > most:
            raise CheckpointError(f"{self} is longer than the limit of {most:,} bytes", hint=_AGAIN)
        return data

    def read_text(self, most: int) -> str:
        """The file's content, decoded as UTF-8."""
        return _decoded(self.read(most), str(self))

    def read_json(self) -> dict[str, Any]:
        """The JSON object in the file; an empty one if the file does not exist."""
        if not self.is_there:
            return {}
        text = self.read_text(LONGEST_JSON)
        try:
            data = parse_json(text)
        except ValueError as error:
            raise CheckpointError(f"{self} can't be read as JSON: {error}", hint=_AGAIN) from error
        if not isinstance(data, dict):
            raise CheckpointError(f"{self} holds a {type(data).__name__}, not a JSON object", hint=_AGAIN)
        return data


def files_in(folder: Path, pattern: str) -> list[CheckpointFile]:
    """The files in a checkpoint's folder that match a glob ``pattern``, sorted by name."""
    return sorted(CheckpointFile(folder, path.relative_to(folder).as_posix()) for path in folder.glob(pattern))


def check_folder(folder: Path) -> None:
    """Checks a checkpoint's folder before it is passed to a library that may read any file in it. Raises
    CheckpointError if a link points outside, or if anything is neither a regular file nor a folder."""
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not path.is_dir():
            CheckpointFile(folder, path.relative_to(folder).as_posix()).open().close()


def read_named(file: str | Path, most: int) -> str:
    """The text of a regular file of at most ``most`` bytes. The user named it, so it may be anywhere.

    Raises :class:`~llmk.api.CheckpointError`.
    """
    path = Path(file).expanduser()
    try:
        with _open_last(str(path), None, 0) as stream:
            data = stream.read(most + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise CheckpointError(f"{path} can't be read: {why}", hint="name a regular file") from error
    if len(data) > most:
        raise CheckpointError(f"{path} is longer than {most:,} bytes", hint="check that it is the right file")
    return _decoded(data, str(path))


def parse_json(text: str, **hooks: Callable[..., Any]) -> Any:
    """Parses untrusted JSON. Raises ValueError if it is invalid, nested deeper than :data:`DEEPEST_JSON`, or has
    strings that can't be encoded. ``hooks`` are those of :func:`json.loads`.
    """
    try:
        data = json.loads(text, **hooks)  # type: ignore[arg-type]
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    if problem := _odd(data):
        raise ValueError(problem)
    return data


def _odd(data: Any) -> str:
    """Why parsed JSON is refused, or ``""``. Iterative, since deep nesting would exceed the recursion limit."""
    level = [data]
    for _ in range(DEEPEST_JSON):
        below: list[Any] = []
        for each in level:
            if isinstance(each, str):
                if not each.isascii() and re.search("[\ud800-\udfff]", each):
                    return "a string in it has half of a surrogate pair"
            elif isinstance(each, dict):
                below += (*each, *each.values())
            elif isinstance(each, list):
                below += each
        if not below:
            return ""
        level = below
    return _TOO_DEEP


def _decoded(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(
            f"{name} is not UTF-8 text: {error.reason} at byte {error.start:,}", hint="save it as UTF-8"
        ) from error


def _root_of(real: Path, folder: Path) -> Path | None:
    """The folder below which ``real``, a path without links, may be opened; ``None`` if it must not be opened."""
    if real.is_relative_to(folder):
        return folder
    repository = folder.parent.parent
    blobs = repository / "blobs"
    is_snapshot = folder.parent.name == "snapshots" and repository.name.startswith("models--")
    return blobs if is_snapshot and real.parent == blobs and _SHA1_OR_SHA256.fullmatch(real.name) else None


def _open_below(root: Path, parts: tuple[str, ...]) -> BinaryIO:
    """Opens a path folder by folder without following links. Its links were resolved before; new ones are refused."""
    with ExitStack() as stack:
        at = stack.enter_context(_folder(str(root), None))
        for part in parts[:-1]:
            at = stack.enter_context(_folder(part, at))
        return _open_last(parts[-1] if parts else ".", at, os.O_NOFOLLOW)


@contextmanager
def _folder(name: str, at: int | None) -> Iterator[int]:
    opened = os.open(name, _READ | os.O_DIRECTORY, dir_fd=at)
    try:
        yield opened
    finally:
        os.close(opened)


def _open_last(name: str, at: int | None, no_follow: int) -> BinaryIO:
    """Opens a regular file. Nothing else is opened, since opening a device may already have an effect."""
    _check_regular(os.stat(name, dir_fd=at, follow_symlinks=not no_follow))
    opened = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | no_follow, dir_fd=at)
    try:
        _check_regular(os.fstat(opened))
        return os.fdopen(opened, "rb")
    except BaseException:
        os.close(opened)
        raise


def _check_regular(status: os.stat_result) -> None:
    kinds = (
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISLNK, "a broken link"),
        (stat.S_ISFIFO, "a pipe"),
        (stat.S_ISSOCK, "a socket"),
    )
    if not stat.S_ISREG(status.st_mode):
        what = next((name for test, name in kinds if test(status.st_mode)), "a device")
        raise OSError(errno.EINVAL, f"it is {what}, not a regular file")


class DecodeRows(Protocol):
    """Makes a tensor's values of the bytes that a file has for them, for tensors that are not stored as they are
    used."""

    @property
    def multiple(self) -> int:
        """Rows are decoded in whole multiples of this many, counted from the tensor's first row; 0: all at once, from
        bytes that don't lie row by row."""
        ...

    def __call__(self, stored: Tensor) -> Tensor:
        """The values of some rows, ``[rows, *columns]`` in the dtype of the :class:`StoredTensor`, of their bytes,
        uint8 ``[rows, bytes per row]``, or, where :attr:`multiple` is 0, ``[1, all bytes]``. Called by several threads
        at once, and more than once for the same rows. Raises CheckpointError where the bytes can't be decoded."""
        ...


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a file. ``dtype`` is safetensors' name (``"BF16"``); its data is bytes ``start`` to ``stop - 1``.

    Without ``decode``, they are the elements as they are used, little-endian, row by row, and as many as ``shape``
    says. With ``decode``, ``dtype`` and ``shape`` are those of the decoded values; the bytes are as many for every row,
    unless all rows are decoded at once. A tensor may have one element, or none, and no dimensions.
    """

    name: str
    file: CheckpointFile
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int
    decode: DecodeRows | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes in the file."""
        return self.stop - self.start

    @property
    def num_elements(self) -> int:
        """The number of elements of its shape."""
        return prod(self.shape)


class CheckpointReader(Protocol):
    """Reads what is large in a checkpoint of another format than a Hugging Face folder. It is pickled for the processes
    that need it, so it should hold the names of files and no content.

    Both methods raise :class:`~llmk.api.CheckpointError`.
    """

    def tensors(self) -> Sequence[StoredTensor]:
        """All tensors, named as in the checkpoints of the model's family. No tensor's data is read. Files that have two
        of one name are refused: which of them is meant is not known."""
        ...

    def tokenizer(self) -> str:
        """The tokenizer in the form of ``tokenizer.json``, the serialization of the ``tokenizers`` library."""
        ...


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint folder in the Hugging Face layout, or what another format says in its terms.

    ``config``, ``generation_config`` and ``tokenizer_config`` are the parsed JSON files (empty if a file is missing).
    ``weight_files`` are the safetensors files in natural order, ``weight_bytes`` is the sum of their sizes on disk.
    Other files are opened with :meth:`file`.

    A checkpoint of another format has a ``reader`` for its tensors and tokenizer, and no ``weight_files``; its ``path``
    may be a file, and its ``weight_bytes`` are those of its tensors on disk, or of its files. ``chat_template`` is the
    default one; ``tokenizer_config`` may have further ones. ``name`` is what it is served as, unless the configuration
    says otherwise; by default, the name of ``path``.
    """

    path: Path
    config: Mapping[str, Any]
    generation_config: Mapping[str, Any] = field(default_factory=dict)
    tokenizer_config: Mapping[str, Any] = field(default_factory=dict)
    chat_template: str | None = None
    weight_files: tuple[CheckpointFile, ...] = ()
    weight_bytes: int = 0
    reader: CheckpointReader | None = None
    name: str = ""

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", self.path.name)

    @property
    def architecture(self) -> str:
        """The first of ``config["architectures"]``, or ``""``."""
        architectures = self.config.get("architectures") or [""]
        return str(architectures[0])

    @property
    def quantization(self) -> Mapping[str, Any]:
        """``config["quantization_config"]``, empty if the checkpoint has none, or something else than a table there."""
        found = self.config.get("quantization_config")
        return found if isinstance(found, Mapping) else {}

    def file(self, name: str) -> CheckpointFile:
        """A file of the folder by name."""
        return CheckpointFile(self.path, name)

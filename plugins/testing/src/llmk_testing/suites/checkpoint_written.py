"""Cases of formats of checkpoints whose example writes files: any content is read as it was written, content that
contradicts itself is refused, and neither takes the memory of the tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing.reduction import ForkingPickler

from llmk.api import CheckpointError, StoredTensor
from llmk_testing.case import Skip
from llmk_testing.format_contents import (
    COUNTED,
    DTYPES,
    contradictions,
    counted,
    large,
    many,
    recounted,
    surplus,
    tensor,
    tensor_contents,
    text_contents,
)
from llmk_testing.format_example import FormatContent, Write
from llmk_testing.format_under_test import FILE, Tried, check_content
from llmk_testing.growth import little_memory
from llmk_testing.stored_values import check_threads, decode_all
from llmk_testing.watch import tensors_kept

_LARGE = 0x1A7 << 16
"""Bytes of a tensor; the upper half of the number is found in files that count them."""
_GROWN = 99_999
"""Elements in place of :data:`~llmk_testing.format_contents.COUNTED`, in as many digits."""
_LITTLE = 8 << 20
"""Bytes of memory that may be taken for a file with a tensor of ``_LARGE`` bytes."""
_MOST_PICKLED = 64 << 10
"""Bytes of a reader that holds the names of files and no content."""


def _dtypes_and_shapes(tried: Tried) -> str:
    """One tensor at a time."""
    compared, refused = 0, []
    for write in _writers(tried):
        for what, content in tensor_contents(tried.example.content, tried.seed):
            data = write(content)
            if data is None:
                refused.append(what)
                continue
            with _named(f"a tensor {what}"):
                check_content(tried, data, content)
            compared += 1
    assert compared, "the example's functions write no tensor"
    return f"{compared} tensors; none of {len(refused)} others, such as {refused[0]}" if refused else f"{compared}"


def _texts(tried: Tried) -> str:
    """Each may be missing, too."""
    compared = 0
    for write in _writers(tried):
        for what, content in text_contents(tried.example.content):
            if (data := write(content)) is not None:
                with _named(what):
                    check_content(tried, data, content)
                compared += 1
    return f"{compared} texts"


def _many(tried: Tried) -> str:
    """Several threads decode them."""
    compared = 0
    for write in _writers(tried):
        known = [dtype for dtype in DTYPES if write(_one(tried, dtype)) is not None]
        content = many(tried.example.content, known, tried.seed)
        if not known or (data := write(content)) is None:
            continue
        compared += check_content(tried, data, content)
        tensors = tried.found(data)[1]
        check_threads(tensors, [content.tensors[each.name] for each in tensors])
        kept = tensors_kept(partial(_decode_each, tensors), 4)
        assert kept <= 0, f"{kept} tensors are kept when those of a file are decoded four times more"
    return f"{compared} tensors"


def _decode_each(tensors: Sequence[StoredTensor]) -> None:
    for each in tensors:
        decode_all(each)


def _contradictions(tried: Tried) -> str:
    """Where the file is read, or where its values are decoded."""
    refused = 0
    for write in tried.example.write or _writers(tried):
        for what, content in contradictions(tried.example.content, tried.seed):
            if (data := _perhaps(write, content)) is not None:
                assert _is_refused(tried, data), f"a file was read as a checkpoint, although of its tensor {what}"
                refused += 1
        with_zeros = replace(tried.example.content, tensors={"model.norm.weight": ("U8", (5, 3), bytes(_LARGE))})
        data = _perhaps(write, with_zeros)
        if data is not None and len(data) < _LITTLE // 8:
            with little_memory(_LITTLE, f"of a file of {len(data):,} bytes, whose tensor of 15 would be {_LARGE:,},"):
                assert _is_refused(tried, data), f"a tensor of 15 bytes was read, of which the file has {_LARGE:,}"
            shrunk = tried.example.seal(recounted(data, _LARGE, 15))
            with little_memory(_LITTLE, f"of {len(data):,} bytes that say to be 15, and are {_LARGE:,} once decoded,"):
                assert _is_refused(tried, shrunk) or not tried.is_harmless(shrunk)
            refused += 1
        refused += _grown(tried, write) + _doubled(tried, write)
        for _, content in surplus(tried.example.content, tried.seed):
            if (data := _perhaps(write, content)) is not None and not _is_refused(tried, data):
                assert not tried.is_harmless(data)
    return f"{refused} files"


def _grown(tried: Tried, write: Write) -> int:
    """Wherever a file says how long a tensor is, it says more than the file has: all of these agree."""
    for dtype in DTYPES:
        content, num_bytes = counted(tried.example.content, dtype)
        if (data := write(content)) is None:
            continue
        grown = recounted(data, num_bytes, _GROWN * num_bytes // COUNTED)
        if num_bytes != COUNTED:
            grown = recounted(grown, COUNTED, _GROWN)
        with _named(f"a tensor {dtype} [{COUNTED}], which a file says is {_GROWN} everywhere"):
            return tried.is_harmless(tried.example.seal(grown))
    return 0


def _doubled(tried: Tried, write: Write) -> int:
    """The name of one tensor, wherever it stands, is that of another, also where the file says that this is right."""
    one, other = "model.layers.7.mlp.up_proj.weight", "model.layers.8.mlp.up_proj.weight"
    tensors = {name: tensor("F32", (5, 3), tried.seed + at) for at, name in enumerate((one, other))}
    data = write(replace(tried.example.content, tensors=tensors))
    if data is None or other.encode() not in data:
        return 0
    doubled = data.replace(other.encode(), one.encode())
    for each in (doubled, tried.example.seal(doubled)):
        # What is sealed may have been read and written again, with one of the two.
        whole = each.count(one.encode()) == doubled.count(one.encode())
        assert not whole or _is_refused(tried, each), f"a file was read, although two of its tensors are {one!r}"
    return 1


def _other_tools(tried: Tried) -> str:
    """Also a content of all dtypes at once: how a tool spells one may depend on the others."""
    if not tried.example.tools:
        raise Skip(
            "FormatExample.tools names no other program that writes the format, so how others spell dtypes, and what"
            " else they put into files, is not tried"
        )
    for name, write in tried.example.tools.items():
        known = [dtype for dtype in DTYPES if write(_one(tried, dtype)) is not None]
        assert known, f"{name} writes no tensor"
        tensors = {f"model.{dtype}": tensor(dtype, (5, 3), tried.seed) for dtype in known}
        data = write(replace(tried.example.content, tensors=tensors))
        if data is not None:
            with _named(f"a file of {name}"):
                check_content(tried, data, replace(tried.example.content, tensors=tensors))
    return ", ".join(tried.example.tools)


def _without_tensors(tried: Tried) -> str:
    """A server starts a process for each rank, and each reads what the file means."""
    sizes = []
    for write in _writers(tried):
        content = replace(large(tried.example.content, _LARGE, tried.seed), tokenizer='{"a": "' + "b" * 300_000 + '"}')
        if (data := write(content)) is None:
            continue
        file = tried.file(data)
        with little_memory(_LITTLE, f"of a file of {len(data):,} bytes, claims and reader"):
            assert tried.spec.claims(file), "it does not claim its own file"
            reader = tried.read([file], tried.example.options).reader
            assert reader is not None, "the checkpoint has no reader"
            list(reader.tensors())
            reader.tokenizer()
        sizes.append(len(ForkingPickler.dumps(reader)))
        assert sizes[-1] <= _MOST_PICKLED, f"pickled, its reader has {sizes[-1]:,} bytes: it holds content of the file"
    return f"{max(sizes, default=0)} bytes of a reader"


WRITTEN = (
    ("tensors of every dtype and shape are read as they were written", _dtypes_and_shapes),
    ("any texts are read as they were written", _texts),
    ("several tensors are read as they were written, by several threads", _many),
    ("a tensor that is not as long as its shape says is refused", _contradictions),
    ("what a file means is read without its tensors", _without_tensors),
    ("what other programs write is read as they mean it", _other_tools),
)
"""Names of cases, and what they run."""


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Says of which content an assertion is."""
    try:
        yield
    except (AssertionError, CheckpointError) as error:
        raise AssertionError(f"of {what}: {error}") from error


def _writers(tried: Tried) -> Iterator[Write]:
    if not tried.example.write and not tried.example.tools:
        raise Skip("the example writes no files")
    yield from (*tried.example.write, *tried.example.tools.values())


def _one(tried: Tried, dtype: str) -> FormatContent:
    return replace(tried.example.content, tensors={"model.norm.weight": tensor(dtype, (5, 3), tried.seed)})


def _perhaps(write: Write, content: FormatContent) -> bytes | None:
    """What a writer makes of numbers that a file may have no room for."""
    try:
        return write(content)
    except Exception:
        return None


def _is_refused(tried: Tried, data: bytes) -> bool:
    if message := tried.refusal(data):
        assert FILE in message, f"the error does not name the file: {message}"
        return True
    try:
        for each in tried.found(data)[1]:
            decode_all(each)
    except CheckpointError:
        return True
    return False

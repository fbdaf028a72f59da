"""The values of tensors as a checkpoint's reader says that they are stored: read and decoded as the engine does it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from llmk.api import StoredTensor
from llmk.nn.layer import STORED_DTYPES
from llmk_testing.format_example import TensorContent

_THREADS = 4
_ROUNDS = 3


def check_values(stored: StoredTensor, content: TensorContent) -> None:
    """Raises AssertionError where the values of a tensor are others than ``content``."""
    dtype, shape, data = content
    wanted = _tensor(data, dtype, shape)
    raw = _bytes(stored)
    if stored.decode is None:
        _compare(stored.name, _tensor(raw, stored.dtype, stored.shape), wanted)
        return
    rows = _rows(stored, raw)
    if not len(rows):
        return
    _compare(stored.name, stored.decode(rows.clone()), wanted)
    _compare(f"decoded once more, {stored.name}", stored.decode(rows.clone()), wanted)
    for start, stop in _parts(stored):
        part = stored.decode(rows[start:stop].clone())
        _compare(f"rows {start} to {stop - 1} of {stored.name}", part, wanted[start:stop])


def decode_all(stored: StoredTensor) -> None:
    """Decodes all rows of a tensor, if it is to be decoded."""
    if stored.decode is not None and len(rows := _rows(stored, _bytes(stored))):
        stored.decode(rows)


def check_threads(tensors: Sequence[StoredTensor], contents: Sequence[TensorContent]) -> None:
    """Several threads decode tensors at once, and the same one. Raises AssertionError as :func:`check_values` does."""

    def decode(number: int) -> tuple[int, Tensor]:
        one = tensors[number]
        assert one.decode is not None
        return number, one.decode(_rows(one, _bytes(one)))

    numbers = [number for number, one in enumerate(tensors) if one.decode is not None and one.num_elements]
    with ThreadPoolExecutor(_THREADS) as pool:
        for number, found in pool.map(decode, [each for each in numbers for _ in range(_ROUNDS * _THREADS)]):
            dtype, shape, data = contents[number]
            _compare(f"decoded by several threads, {tensors[number].name}", found, _tensor(data, dtype, shape))


def _bytes(stored: StoredTensor) -> bytes:
    with stored.file.open() as stream:
        stream.seek(stored.start)
        return stream.read(stored.num_bytes)


def _rows(stored: StoredTensor, raw: bytes) -> Tensor:
    """What ``decode`` is given for the whole tensor."""
    assert stored.decode is not None
    count = stored.shape[0] if stored.decode.multiple and stored.shape else 1
    if stored.decode.multiple:
        what = f"{stored.name} has {len(raw)} bytes for {count} rows"
        assert not count or len(raw) % count == 0, f"{what}, not as many for each"
        assert count % stored.decode.multiple == 0, f"{what}, which are decoded {stored.decode.multiple} at a time"
    return _tensor(raw, "U8", (count, len(raw) // max(1, count)))


def _parts(stored: StoredTensor) -> Iterator[tuple[int, int]]:
    """Rows that a rank may have of it."""
    step = stored.decode.multiple if stored.decode else 0
    count = stored.shape[0] if stored.shape else 0
    if step and count > step:
        yield from ((0, step), (step, 2 * step), (step, count), (count - step, count))


def _tensor(data: bytes, dtype: str, shape: Sequence[int]) -> Tensor:
    known = STORED_DTYPES[dtype]
    if not data:
        return torch.empty(tuple(shape), dtype=known)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(known).view(tuple(shape))


def _compare(what: str, found: Tensor, wanted: Tensor) -> None:
    """Bit by bit, or within the last place of the dtype, where a number was computed."""
    described = (found.dtype, tuple(found.shape))
    assert described == (wanted.dtype, tuple(wanted.shape)), (
        f"{what} is {found.dtype} {list(found.shape)}, not {wanted.dtype} {list(wanted.shape)}"
    )
    if torch.equal(_bits(found), _bits(wanted)):
        return
    close = False
    if wanted.is_floating_point():
        place = 2 * torch.finfo(wanted.dtype).eps
        close = torch.allclose(found.double(), wanted.double(), rtol=place, atol=0.0, equal_nan=True)
    assert close, f"{what} has other values: {_listed(found)} instead of {_listed(wanted)}"


def _bits(values: Tensor) -> Tensor:
    return values.contiguous().view(-1).view(torch.uint8)


def _listed(values: Tensor) -> str:
    return str(values.double().flatten()[:4].tolist())

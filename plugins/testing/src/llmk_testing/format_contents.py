"""Contents that the conformance kit has formats of checkpoints hold: of every dtype and shape, with any texts, and such
as contradict themselves."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any, Literal

from llmk.nn.tensor_file import DTYPE_BITS
from llmk_testing.format_example import FormatContent, TensorContent

DTYPES = ("F32", "BF16", "F16", "F64", "I64", "I32", "I16", "I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2")
"""Those that layers load."""
SHAPES: Sequence[tuple[int, ...]] = (
    *((5, 3), (13,), (), (1,), (1, 1), (8, 16), (1, 7), (7, 1), (2, 1, 3), (3, 2, 5)),
    *((0,), (0, 4), (4, 0), (33, 257)),
)
"""Matrices and vectors first: formats may lack the others. Numbers of elements that 8 does not divide, of none, of one,
and of more than a page of memory."""
NAMES = (
    "model.embed_tokens.weight",
    "model.layers.2.self_attn.q_proj.weight",
    "model.layers.10.mlp.experts.17.w1.weight",
    "model.layers.0.mixer.A_log",
    "lm_head.weight",
)
COUNTED = 0x12345
"""Elements of a tensor whose number is found in files."""
_DESCRIBING = 256
"""Bytes in front of a tensor that may be counted with its own."""
_NUMBERS_LIKE: Mapping[Literal["little", "big"], bytes] = {"little": b"..%s", "big": b"%s.."}
"""Numbers of 4 bytes, of which two are known."""
_ELEMENTS = 15
_WRONG: Mapping[str, Sequence[int]] = {
    "one row more": (6, 3),
    "two negative numbers": (-5, -3),
    "a negative number": (-15,),
    "elements that wrap at 32 bits": (_ELEMENTS + 2**32,),
    "bytes that wrap at 32 bits": (_ELEMENTS + 2**30,),
    "elements that wrap at 64 bits": (9293012313, 2977518503),
    "bytes that wrap at 64 bits": (_ELEMENTS + 2**62,),
    "elements that no memory has": (2**40, 2**20),
}
"""Shapes for which 15 elements of 4 bytes are too few, or that can't be."""
_ODD: Mapping[str, Any] = {
    "zero": 0,
    "no": False,
    "nothing": None,
    "blank": "",
    "none": [],
    "long": 2**53 + 1,
    "small": 1e-6,
    "text": 'é "ü" \\ \n 漢字 🙂 <|end|>',
    "nested": {"a": [1, {"b": [True, None, 0.5]}]},
}


def tensor_contents(base: FormatContent, seed: int) -> Iterator[tuple[str, FormatContent]]:
    """One tensor each, of every dtype and shape, by what they are."""
    for dtype in DTYPES:
        for shape in SHAPES:
            yield f"{dtype} {list(shape)}", _with(base, {NAMES[0]: tensor(dtype, shape, seed)})


def many(base: FormatContent, known: Sequence[str], seed: int) -> FormatContent:
    """Several tensors of dtypes that the format holds, with names as checkpoints have them, of which none is a whole
    number of pages, or of words, long."""
    tensors = {
        name: tensor(known[number % len(known)], (5 + 2 * number, 7), seed + number)
        for number, name in enumerate(NAMES)
    }
    return _with(base, tensors)


def text_contents(base: FormatContent) -> Iterator[tuple[str, FormatContent]]:
    """Other texts, each alone, by what is in them."""
    yield "values of all kinds in config", replace(base, config={**base.config, "odd": _ODD, **_ODD})
    yield (
        "several ends in generation_config",
        replace(base, generation_config={"eos_token_id": [0, 1], "temperature": 0.0, "do_sample": False, "top_k": 7}),
    )
    yield "token 0 as the end", replace(base, generation_config={"eos_token_id": 0})
    yield "no generation_config", replace(base, generation_config={})
    yield (
        "values of all kinds in tokenizer_config",
        replace(
            base,
            tokenizer_config={
                "eos_token": "<|im_end|>",
                "bos_token": {"content": "<s>", "lstrip": False},
                "add_bos_token": False,
                "odd": _ODD,
            },
        ),
    )
    yield "no tokenizer_config", replace(base, tokenizer_config={})
    yield "no chat template", replace(base, chat_template=None)
    yield (
        "a chat template of several lines",
        replace(base, chat_template="{{ 'é\"' }}\n\n {%- if a %}\t漢{% endif %}\n"),
    )
    yield "a tokenizer with all characters", replace(base, tokenizer='{"model": {"vocab": {"é": 0, "漢 🙂\\n": 1}}}')
    yield "a tokenizer of 300,000 bytes", replace(base, tokenizer='{"a": "' + "ü" * 150_000 + '"}')


def contradictions(base: FormatContent, seed: int) -> Iterator[tuple[str, FormatContent]]:
    """Content whose tensor has too few bytes, or none that could be, by what is wrong."""
    data = tensor("F32", (_ELEMENTS,), seed)[2]
    for what, shape in _WRONG.items():
        yield f"the shape has {what}", _with(base, {NAMES[0]: ("F32", shape, data)})
    yield "the last byte is missing", _with(base, {NAMES[0]: ("F32", (5, 3), data[:-1])})
    yield "there are no bytes", _with(base, {NAMES[0]: ("F32", (5, 3), b"")})
    yield "the dtype is unknown", _with(base, {NAMES[0]: ("F31", (5, 3), data)})


def surplus(base: FormatContent, seed: int) -> Iterator[tuple[str, FormatContent]]:
    """Content whose tensor has more bytes than its shape says, which a format need not see."""
    data = tensor("F32", (_ELEMENTS,), seed)[2]
    for what, shape in (("a row less", (4, 3)), ("no elements", (0, 3))):
        yield f"the shape has {what}", _with(base, {NAMES[0]: ("F32", shape, data)})
    yield "there is a byte too many", _with(base, {NAMES[0]: ("F32", (5, 3), data + b"\0")})


def counted(base: FormatContent, dtype: str) -> tuple[FormatContent, int]:
    """A tensor of :data:`COUNTED` zeros, and how many bytes those are: numbers that nothing else in the file is."""
    num_bytes = COUNTED * DTYPE_BITS[dtype] // 8
    return _with(base, {NAMES[0]: (dtype, (COUNTED,), bytes(num_bytes))}), num_bytes


def recounted(data: bytes, was: int, now: int) -> bytes:
    """A file in which each number that may count the ``was`` bytes of a tensor, also with what describes it, counts
    ``now`` instead: as text, and in 4 and 8 bytes of either order."""

    def other(number: int) -> int:
        return number - was + now if was <= number < was + _DESCRIBING else number

    def in_text(found: re.Match[bytes]) -> bytes:
        return (b"%d" % other(int(found[0]))).ljust(len(found[0]))

    def in_binary(order: Literal["little", "big"], found: re.Match[bytes]) -> bytes:
        return other(int.from_bytes(found[0], order)).to_bytes(4, order)

    data = re.sub(rb"(?<!\d)\d{5,9}(?!\d)", in_text, data)
    for order, pattern in _NUMBERS_LIKE.items():
        data = re.sub(
            pattern % re.escape((was >> 16).to_bytes(2, order)), partial(in_binary, order), data, flags=re.DOTALL
        )
    return data


def large(base: FormatContent, num_bytes: int, seed: int) -> FormatContent:
    """A tensor of bytes that can't be compressed."""
    data = random.Random(seed).randbytes(num_bytes)
    return _with(base, {NAMES[0]: ("U8", (num_bytes // 1024, 1024), data)})


def tensor(dtype: str, shape: Sequence[int], seed: int) -> TensorContent:
    """Random bits: all numbers that a dtype has, infinity and NaN, too."""
    data = random.Random(f"{seed} {dtype} {shape}").randbytes(prod(shape) * DTYPE_BITS[dtype] // 8)
    return dtype, shape, bytes(each & 1 for each in data) if dtype == "BOOL" else data


def _with(base: FormatContent, tensors: Mapping[str, TensorContent]) -> FormatContent:
    return replace(base, tensors=tensors)

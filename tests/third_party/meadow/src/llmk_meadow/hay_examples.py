"""Files of the format, whole and damaged."""

from __future__ import annotations

import json
from typing import Any

from llmk_testing.format_example import FormatContent, FormatExample

WEIGHT, BIAS = bytes(range(48)), bytes(range(100, 108))
CONFIG = {"architectures": ["ToyForCausalLM"], "hidden_size": 4}
TOKENIZER = '{"version": "1.0"}'
TENSORS: list[dict[str, Any]] = [
    {"name": "a.weight", "dtype": "F32", "shape": [3, 4], "start": 0},
    {"name": "a.bias", "dtype": "BF16", "shape": [4], "start": 48},
]


def packed(header: Any, data: bytes = WEIGHT + BIAS) -> bytes:
    """A file with this header."""
    text = header if isinstance(header, bytes) else json.dumps(header, ensure_ascii=False).encode()
    return b"HAY1" + len(text).to_bytes(4, "little") + text + data


def header(*tensors: dict[str, Any], **others: Any) -> dict[str, Any]:
    """A header with other tensors or fields."""
    return {"config": CONFIG, "tokenizer": TOKENIZER, "tensors": list(tensors or TENSORS), **others}


def written(content: FormatContent) -> bytes | None:
    """A file of this content, if the format has its dtypes."""
    tensors, data = [], b""
    for name, (dtype, shape, values) in content.tensors.items():
        tensors.append({"name": name, "dtype": dtype, "shape": list(shape), "start": len(data)})
        data += values
    if any(each["dtype"] in ("F64", "I16", "BOOL", "F8_E4M3", "F8_E5M2") for each in tensors):
        return None
    texts = {
        "config": content.config,
        "generation_config": content.generation_config,
        "tokenizer_config": content.tokenizer_config,
        "chat_template": content.chat_template,
        "tokenizer": content.tokenizer,
    }
    return packed({**texts, "tensors": tensors}, data)


HAY = FormatExample(
    packed(header()),
    FormatContent(CONFIG, {"a.weight": ("F32", (3, 4), WEIGHT), "a.bias": ("BF16", (4,), BIAS)}, TOKENIZER),
    write=(written,),
    damaged={
        "it has a byte too few": packed(header())[:-1],
        "its header is longer than the file": packed(header())[:40],
        "its header is not JSON": packed(b"{" * 20),
        "its header is not UTF-8": packed(b"\xff{}"),
        "its header is a list": packed([]),
        "its config is a list": packed(header(config=[])),
        "it has no tokenizer": packed(header(tokenizer=None)),
        "a tensor starts before the data": packed(header({**TENSORS[0], "start": -8})),
        "two tensors have one name": packed(header(TENSORS[0], TENSORS[0])),
        "a tensor has no shape": packed(header({"name": "a", "dtype": "F32", "start": 0})),
        "a dtype is not known": packed(header({**TENSORS[0], "dtype": "F4"})),
    },
)

"""Examples for the conformance kit: a small file of the format, what it means, and how it may be damaged."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from llmk_testing.format_example import FormatExample

from .specs import MAGIC

CONFIG = {"architectures": ["LlamaForCausalLM"], "hidden_size": 4, "vocab_size": 6}
TOKENIZER = json.dumps({"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}})
TENSORS: dict[str, tuple[str, Sequence[int], bytes]] = {
    "model.embed_tokens.weight": ("BF16", (6, 4), bytes(range(48))),
    "model.norm.weight": ("F32", (4,), bytes(range(16))),
    "model.empty": ("F16", (0, 4), b""),
}
HEADER = 1024
"""Bytes of the header, which is padded, so that offsets don't depend on its content."""


def bundle(**changes: Any) -> bytes:
    """A file, with other values in its header."""
    tensors, at, data = {}, len(MAGIC) + 8 + HEADER, b""
    for name, (dtype, shape, content) in TENSORS.items():
        tensors[name] = [dtype, shape, at + len(data)]
        data += content
    header: Mapping[str, Any] = {"config": CONFIG, "tokenizer": TOKENIZER, "tensors": tensors, **changes}
    return MAGIC + HEADER.to_bytes(8, "little") + json.dumps(header).encode().ljust(HEADER) + data


WHOLE = bundle()
BUNDLE = FormatExample(
    file=WHOLE,
    config=CONFIG,
    tensors=TENSORS,
    tokenizer=TOKENIZER,
    damaged={
        "the last byte is missing": WHOLE[:-1],
        "there is a byte too many": WHOLE + b"\0",
        "there is no header": MAGIC,
        "the header is longer than the file": MAGIC + (1 << 60).to_bytes(8, "little") + WHOLE[len(MAGIC) + 8 :],
        "the header is not an object": bundle().replace(b'{"config"', b'["config"'),
        "there is no config": bundle(config={}),
        "the tokenizer is not a text": bundle(tokenizer=[]),
        "a tensor is larger than the file": bundle(tensors={"a": ["F32", [1 << 40], len(MAGIC) + 8 + HEADER]}),
        "a dtype is unknown": bundle(tensors={"a": ["Q4", [64], len(MAGIC) + 8 + HEADER]}),
        "a size is negative": bundle(tensors={"a": ["F16", [-1, -32], len(MAGIC) + 8 + HEADER]}),
    },
)

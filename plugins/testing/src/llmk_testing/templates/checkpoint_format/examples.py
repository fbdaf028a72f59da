"""Examples for the conformance kit: what writes files of the format, one of them, and how it may be damaged."""

from __future__ import annotations

import json
from typing import Any

from llmk_testing.format_example import FormatContent, FormatExample

from .bundle import WIDTHS
from .specs import MAGIC

CONTENT = FormatContent(
    config={"architectures": ["LlamaForCausalLM"], "hidden_size": 4, "vocab_size": 6},
    tokenizer=json.dumps({"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}),
    generation_config={"eos_token_id": 5},
    tokenizer_config={"eos_token": "</s>"},
    tensors={
        "model.embed_tokens.weight": ("BF16", (6, 4), bytes(range(48))),
        "model.norm.weight": ("F32", (4,), bytes(range(16))),
        "model.empty": ("F16", (0, 4), b""),
    },
)


def bundle(content: FormatContent = CONTENT, **changes: Any) -> bytes:
    """A file of the content, with other values in its header."""
    tensors: dict[str, Any] = {}
    data = b"".join(values for _, _, values in content.tensors.values())
    texts = {name: getattr(content, name) for name in ("config", "generation_config", "tokenizer_config", "tokenizer")}

    def headed() -> bytes:
        text = json.dumps({**texts, "tensors": tensors, **changes}).encode()
        return MAGIC + len(text).to_bytes(8, "little") + text

    # How long the header is depends on the offsets, which depend on how long it is.
    start = -1
    while start != len(headed()):
        start = at = len(headed())
        for name, (dtype, shape, values) in content.tensors.items():
            tensors[name] = [dtype, list(shape), at]
            at += len(values)
    return headed() + data


def write(content: FormatContent) -> bytes | None:
    """A file of any content that the format can hold."""
    if content.chat_template is not None or not all(dtype in WIDTHS for dtype, _, _ in content.tensors.values()):
        return None
    return bundle(content)


WHOLE = bundle()
AT = len(MAGIC) + 8
"""Where the header starts."""
BUNDLE = FormatExample(
    file=WHOLE,
    content=CONTENT,
    write=(write,),
    damaged={
        "the last byte is missing": WHOLE[:-1],
        "there is a byte too many": WHOLE + b"\0",
        "there is no header": MAGIC,
        "the header is longer than the file": MAGIC + (1 << 60).to_bytes(8, "little") + WHOLE[AT:],
        "the header is not an object": WHOLE.replace(b'{"config"', b'["config"'),
        "there is no config": bundle(config={}),
        "the tokenizer is not a text": bundle(tokenizer=[]),
        "a tensor is larger than the file": bundle(tensors={"a": ["F32", [1 << 40], 400]}),
        "a dtype is unknown": bundle(tensors={"a": ["Q4", [64], 400]}),
        "a size is negative": bundle(tensors={"a": ["F16", [-1, -32], 400]}),
    },
)

"""Pre-tokenizers of byte-level BPE by the names that ``tokenizer.ggml.pre`` gives them.

The patterns are those of the models' own ``tokenizer.json``, as llama.cpp quotes them next to its own
(``src/llama-vocab.cpp``). A name that is not here is refused: with a wrong pattern, a model gets wrong tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*")
_CASED_REST = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT4O = rf"{_CASED[0]}{_CONTRACTION}?|{_CASED[1]}{_CONTRACTION}?|\p{{N}}{{1,3}}|{_CASED_REST}"
_TEKKEN = rf"{_CASED[0]}|{_CASED[1]}|\p{{N}}|{_CASED_REST}"


@dataclass(frozen=True, slots=True)
class Split:
    """A pre-tokenizer: ``patterns`` split a text one after the other. ``whole_words``: a piece that is a token is not
    merged from smaller ones. ``nfc``: texts get the normal form C first. ``bos``: a text starts with the
    token for that, unless the file says otherwise."""

    patterns: tuple[str, ...]
    whole_words: bool = False
    nfc: bool = False
    bos: bool = False


_LLAMA3_SPLIT = Split((_LLAMA3,), whole_words=True, bos=True)
_DIGITS_FIRST = Split((r"\p{N}", _GPT2))

SPLITS: Mapping[str, Split] = {
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "lfm2"), _LLAMA3_SPLIT),
    **dict.fromkeys(("dbrx", "smaug-bpe"), Split((_LLAMA3,))),
    **dict.fromkeys(("qwen2", "megrez"), Split((_QWEN2,), nfc=True)),
    **dict.fromkeys(("deepseek-r1-qwen", "hunyuan", "solar-open", "stablelm2"), Split((_QWEN2,))),
    **dict.fromkeys(("gpt-2", "olmo", "exaone4", "mpt", "phi-2"), Split((_GPT2,))),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"), _DIGITS_FIRST),
    **dict.fromkeys(("gpt-4o", "llama4", "minimax-m2"), Split((_GPT4O,))),
    "tekken": Split((_TEKKEN,), whole_words=True, bos=True),
}

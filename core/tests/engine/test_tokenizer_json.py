"""``tokenizer.json`` is read as the ``tokenizers`` library reads it, and leaves no gaps."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from fakes import write_checkpoint
from trained import KINDS

from llmk.engine.text.tokenizer_json import parse

OPTIONS: list[dict[str, Any]] = [
    {},
    {"dropout": 0.25, "unk_token": "a", "fuse_unk": True},
    {"byte_fallback": True, "ignore_merges": True},
    {"continuing_subword_prefix": "", "end_of_word_suffix": "</w>"},
]
ADDED = [
    {"id": 1, "content": "<s>", "special": True},
    {"id": 9000, "content": "<|out of order|>", "special": True, "lstrip": True},
    {"id": 8000, "content": "word", "normalized": True, "single_word": True, "rstrip": True},
]
FLAGS = dict.fromkeys(("special", "normalized", "single_word", "lstrip", "rstrip"), False)

GAPS = """
import ctypes, json, random, sys
from llmk.engine.device.heap import find_trim
from llmk.engine.text.tokenizer_json import parse

class Heap(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena _1 _2 _3 mapped _4 _5 used free keep".split()]

vocab = {{f"w{{number:06d}}": number for number in range(60_000)}}
data = json.dumps({{"version": "1.0", "added_tokens": [], "model": {{"type": "BPE", "vocab": vocab, "merges": []}}}})
whole = {parse}(data.encode())
find_trim()()
libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Heap
found = libc.mallinfo2()
sys.exit(found.free > 0.1 * found.used)
"""


def state(tmp_path: Path, kind: str = "byte_level") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((write_checkpoint(tmp_path, kind) / "tokenizer.json").read_text())
    return found


def check(whole: dict[str, Any]) -> None:
    data = json.dumps(whole).encode()
    assert parse(data).to_str() == tokenizers.Tokenizer.from_buffer(data).to_str()


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind(tmp_path, kind):
    check(state(tmp_path, kind))


@pytest.mark.parametrize("options", OPTIONS)
def test_options_of_the_model(tmp_path, options):
    whole = state(tmp_path)
    check(whole | {"model": whole["model"] | options})


def test_merges_of_older_files(tmp_path):
    whole = state(tmp_path)
    merges = [" ".join(merge) for merge in whole["model"]["merges"]]
    check(whole | {"model": whole["model"] | {"merges": merges}})


def test_added_tokens(tmp_path):
    whole = state(tmp_path)
    check(whole | {"added_tokens": [*whole["added_tokens"], *({**FLAGS, **token} for token in ADDED)]})


def test_fields_of_tokens_that_are_not_known(tmp_path, capfd):
    whole = state(tmp_path)
    check(whole | {"added_tokens": [{"id": 9000, "content": "<s>", **FLAGS, "new": 1}]})
    assert not capfd.readouterr().err


@pytest.mark.parametrize(
    "changes",
    [
        {"model": None},
        {"model": {"type": "BPE", "merges": []}},
        {"model": {"type": "BPE", "vocab": ["a"], "merges": []}},
        {"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}},
        {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b c"]}},
        {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}},
        {"added_tokens": None},
        {"added_tokens": [{"id": 9000, "content": "<s>"}]},
        {"version": "2.0"},
    ],
    ids=str,
)
def test_what_is_wrong_is_said_by_the_library(tmp_path, changes):
    data = json.dumps(state(tmp_path) | changes).encode()
    with pytest.raises(ValueError, match="Cannot instantiate") as expected:
        tokenizers.Tokenizer.from_buffer(data)
    with pytest.raises(ValueError, match="Cannot instantiate") as found:
        parse(data)
    assert str(found.value) == str(expected.value)


def test_limits_of_length(tmp_path):
    padding = {"strategy": {"Fixed": 9}, "direction": "Left", "pad_to_multiple_of": None}
    padding |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "a"}
    truncation = {"direction": "Right", "max_length": 7, "strategy": "LongestFirst", "stride": 0}
    check(state(tmp_path) | {"padding": padding, "truncation": truncation})


@pytest.mark.skipif(sys.platform != "linux", reason="asks glibc")
@pytest.mark.parametrize(("by", "gaps"), [("parse", False), ("__import__('tokenizers').Tokenizer.from_buffer", True)])
def test_no_gaps_are_left(by, gaps):
    """The library by itself leaves some: where it no longer does, this module has no use."""
    done = subprocess.run([sys.executable, "-c", GAPS.format(parse=by)], capture_output=True, text=True)
    assert not done.stderr
    assert done.returncode == gaps

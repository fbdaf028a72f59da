"""A checkpoint whose small files are spoilt is served, or refused by an error of llmk's: never by a bare exception, and
never without end.

The files of the demo model are spoilt at random, by a seed: values exchanged for odd ones, keys renamed or left out,
branches swapped, bytes flipped or cut off. ``LLMK_SPOILT=5000`` tries as many; by default it is a sample.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from llmk import LLM, SamplingParams
from llmk.api import LlmkError
from llmk.config import load
from llmk.engine.text.input_processor import default_params
from llmk.engine.text.tokenizer import Tokenizer
from llmk.planning.boot import boot
from llmk_models.specs import DEMO

TRIED = int(os.environ.get("LLMK_SPOILT", "120"))
SERVED = max(8, TRIED // 20)
"""So many of what can be read are started, and answer."""
LONGEST = 60
"""Seconds for one checkpoint, on a machine that does much else."""

SMALL = {"cache.num_blocks": 160, "scheduler.max_num_seqs": 2, "scheduler.max_num_batched_tokens": 64}
ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 0.5, -0.0, 1e308, float("inf"), float("nan"), 2**31 - 1, 2**63, 10**400,
    "", "x", "4", "../..", "/etc/shadow", "\u0000", "🙂", "\ud800", "a" * 5000, "{{ x", "{% for", "full_attention",
    [], [0],
    ["x"], [[]], [None], [1e9], {}, {"x": 1}, {"content": 3}, {"content": "x"}, {"rope_type": "yarn"},
    {"rope_type": "longrope", "factor": 2.0}, {"quant_method": "fp8"}, ["LlamaForCausalLM"], ["MixtralForCausalLM"],
    ["Gemma2ForCausalLM"], ["Mamba2ForCausalLM"],
    ["DeepseekV2ForCausalLM"], ["Qwen3NextForCausalLM"], ["OtherForCausalLM"],
    ["OlmoForCausalLM"],
)  # fmt: skip
KEYS = (
    "architectures", "attention_chunk_size", "auto_map", "chat_template", "added_tokens_decoder", "eos_token_id",
    "head_dim", "layer_types", "model_type", "num_experts", "num_local_experts", "quantization_config",
    "rope_parameters", "rope_scaling", "sliding_window", "text_config", "tie_word_embeddings", "torch_dtype",
    "use_sliding_window", "vocab_size",
)  # fmt: skip
"""What may stand in a config, too."""


class TookTooLongError(BaseException):
    """Not an Exception, so that nothing takes it for a cause."""


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    def late(number: int, frame: FrameType | None) -> None:
        raise TookTooLongError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def places(data: Any) -> list[tuple[Any, Any]]:
    """Every place of a value in parsed JSON: what it is in, and its key or index there."""
    keys = list(data) if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()
    own = [(data, key) for key in list(keys)[:400]]
    return own + [place for _, key in own for place in places(data[key])]


def spoil_json(text: str, choose: random.Random) -> str:
    """Changes one place of a JSON text, or a few."""
    data = json.loads(text)
    for _ in range(choose.choice((1, 1, 1, 2, 4))):
        known = places(data)
        if not known:
            return json.dumps(choose.choice(ODD))
        inside, key = choose.choice(known)
        kind = choose.randrange(8)
        if kind <= 3:
            inside[key] = deepcopy(choose.choice(ODD))
        elif kind == 4:
            del inside[key]
        elif kind == 5 and isinstance(data, dict):
            data[choose.choice(KEYS)] = deepcopy(choose.choice(ODD))
        elif kind == 6:
            other, its_key = choose.choice(known)
            inside[key], other[its_key] = deepcopy(other[its_key]), deepcopy(inside[key])
        else:
            for _ in range(choose.choice((3, 70, 120))):
                inside[key] = [inside[key]]
    return json.dumps(data)


def spoil_bytes(data: bytes, choose: random.Random) -> bytes:
    """Cuts a file off, flips some of its bytes, or puts others in."""
    at = choose.randrange(len(data) + 1)
    kind = choose.randrange(5)
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + choose.randbytes(choose.choice((1, 4, 100))) + data[at:]
    if kind == 2:
        return data.decode(errors="replace").encode(choose.choice(("utf-16", "utf-32", "utf-8-sig")))
    if kind == 3:
        return data[:at] + b"[" * 100_000 + data[at:]
    flipped = bytearray(data)
    for _ in range(choose.choice((1, 3, 20))):
        if flipped:
            flipped[choose.randrange(len(flipped))] ^= 1 << choose.randrange(8)
    return bytes(flipped)


def spoil_header(file: Path, spoil: Callable[[str, random.Random], str], choose: random.Random) -> None:
    """Spoils the header of a safetensors file, and says its new length."""
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    text = spoil(data[8 : 8 + length].decode(), choose).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


def spoil(folder: Path, choose: random.Random) -> str:
    """Spoils a file of a checkpoint, or two; returns what was done."""
    names = ["config.json", "config.json", "config.json", "generation_config.json", "tokenizer_config.json"]
    names += ["tokenizer.json", "chat_template.jinja", "model.safetensors", "model.safetensors.index.json"]
    done = []
    for name in choose.sample(names, choose.choice((1, 1, 1, 2))):
        file = folder / name
        if name == "model.safetensors":
            spoil_header(file, spoil_json, choose)
        elif name == "model.safetensors.index.json":
            file.write_text(spoil_json('{"metadata": {}, "weight_map": {"a": "model.safetensors"}}', choose))
        elif name.endswith(".json") and choose.random() < 0.8:
            try:
                file.write_text(spoil_json(file.read_text(), choose))
            except (ValueError, RecursionError):  # it was spoilt before
                continue
        else:
            file.write_bytes(spoil_bytes(file.read_bytes(), choose))
        done.append(name)
    return " and ".join(done)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "model"


def copied(folder: Path) -> None:
    """The demo model, anew."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for file in DEMO.iterdir():
        if file.is_file():
            shutil.copyfile(file, folder / file.name)


def read(folder: Path) -> None:
    """All that is read before an engine starts."""
    booted = boot(load({"model.path": str(folder), **SMALL}, environ={}))
    tokenizer = Tokenizer.load(booted.checkpoint)
    default_params(booted.checkpoint.generation_config)
    try:
        tokenizer.encode(tokenizer.render_chat([{"role": "user", "content": "Hi"}]))
    except LlmkError:  # a template may well refuse
        tokenizer.encode("Hi")


def serve(folder: Path) -> None:
    with LLM(str(folder), **SMALL) as llm:
        llm.generate(["Hello"], SamplingParams(max_tokens=2))


def outcome(work: Callable[[Path], None], folder: Path, what: str) -> str:
    """``"served"`` or ``"refused"``. Fails for all else."""
    try:
        with at_most(LONGEST):
            work(folder)
    except LlmkError as error:
        str(error).encode()  # it can be printed
        return "refused"
    except BaseException as error:
        pytest.fail(f"{what}: {type(error).__name__}: {error}")
    return "served"


@pytest.mark.slow
def test_spoilt_checkpoints_are_served_or_refused(folder: Path) -> None:
    choose = random.Random(int(os.environ.get("LLMK_SPOILT_SEED", "1")))
    readable = {"served": 0, "refused": 0}
    started = {"served": 0, "refused": 0}
    for number in range(TRIED):
        copied(folder)
        what = f"number {number}, {spoil(folder, choose)}"
        found = outcome(read, folder, what)
        readable[found] += 1
        if found == "served" and sum(started.values()) < SERVED:
            started[outcome(serve, folder, f"{what}, started")] += 1
    assert min(readable.values()) > TRIED // 10, readable
    assert started["served"], started

"""Examples for the conformance kit: a tiny checkpoint, which needs transformers, request bodies, and their answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import mean
from typing import Any

from llmk.api import IOContext, IOOutput, IOPrompt
from llmk_testing.checkpoints import write_checkpoint
from llmk_testing.suites.io_processor import IOExamples


def expected(context: IOContext, body: Mapping[str, Any], model: Callable[[IOPrompt], IOOutput]) -> Any:
    """The answer, by the plainest code; ``model`` returns all of the output of a prompt."""
    nats = []
    for text in body["texts"]:
        logprobs = model(IOPrompt(prompt=text, returns="logprobs")).logprobs[1:]
        nats.append(-mean(max(each, -1e4) for each in logprobs if each is not None) if logprobs else None)
    return {"nats_per_token": nats}


SURPRISE = IOExamples(
    write=lambda folder: write_checkpoint(folder, "qwen3"),
    bodies=[{"texts": ["a core"]}, {"texts": ["which blocks they own", "a small core", "a"]}, {"texts": ["a", "a"]}],
    refused=[
        {},
        {"texts": "a core"},
        {"texts": []},
        {"texts": [1]},
        {"texts": ["a", 1]},
        {"texts": ["a"], "text": "b"},
    ],
    tolerance=1e-4,
    expected=expected,
)

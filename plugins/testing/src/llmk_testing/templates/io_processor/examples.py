"""Examples for the conformance kit: a tiny checkpoint, which needs transformers, and request bodies."""

from __future__ import annotations

from llmk_testing.checkpoints import write_checkpoint
from llmk_testing.suites.io_processor import IOExamples

SURPRISE = IOExamples(
    write=lambda folder: write_checkpoint(folder, "qwen3"),
    bodies=[{"texts": ["a core"]}, {"texts": ["which blocks they own", "a small core"]}],
    refused=[{}, {"texts": "a core"}, {"texts": [1]}, {"texts": ["a"], "text": "b"}],
    tolerance=1e-4,
)

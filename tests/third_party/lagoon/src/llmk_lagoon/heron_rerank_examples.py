"""Examples for the conformance kit: a tiny checkpoint, which needs transformers, request bodies, and their answers."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from llmk.api import IOContext, IOOutput, IOPrompt
from llmk_testing.checkpoints import write_checkpoint
from llmk_testing.suites.io_processor import IOExamples


def direction(vector: Tensor) -> Tensor:
    """The vector with length 1; zeros stay zeros."""
    length = vector.double().norm()
    return vector.double() / length if length > 0 else vector.double()


def expected(context: IOContext, body: Mapping[str, Any], model: Callable[[IOPrompt], IOOutput]) -> Any:
    """The answer, by the plainest code."""
    skip = context.options.get("skip_punctuation", True)
    tokenizer = context.tokenizer
    total = 0

    def tokens(text: str, is_query: bool) -> Tensor:
        nonlocal total
        output = model(IOPrompt(prompt=text, returns="hidden"))
        total += len(output.token_ids)
        assert output.hidden is not None
        kept = []
        for id, vector in zip(output.token_ids, output.hidden, strict=True):
            written = tokenizer.token_text(id).strip()
            marks = written != "" and all(unicodedata.category(each)[0] == "P" for each in written)
            if id not in tokenizer.special_token_ids and (is_query or not skip or not marks):
                kept.append(direction(vector))
        return torch.stack(kept or [direction(vector) for vector in output.hidden])

    query = tokens(body["query"], True)
    results = []
    for index, text in enumerate(body["documents"]):
        document = tokens(text, False)
        best = [float((document @ asked).max()) for asked in query]
        results.append({"index": index, "relevance_score": round(sum(best) / len(best), 6)})
        if body.get("return_documents"):
            results[-1]["document"] = text
    results.sort(key=lambda result: -result["relevance_score"])
    if body.get("top_n") is not None:
        results = results[: int(body["top_n"])]
    if body.get("min_score") is not None:
        results = [result for result in results if result["relevance_score"] >= body["min_score"]]
    return {"model": context.model_name, "results": results, "usage": {"total_tokens": total}}


DOCUMENTS = ["a small core", "which blocks they own", "plugins, and nothing else!", "a core"]
BODIES = [
    {"query": "which core", "documents": DOCUMENTS},
    {"query": "which core", "documents": DOCUMENTS, "top_n": 2, "return_documents": True},
    {"query": "a plugin?", "documents": DOCUMENTS, "top_n": 9, "min_score": -1, "return_documents": False},
    {"query": "a", "documents": ["a", "!?", "a", "a."], "min_score": 0.5},
    {"query": "...", "documents": ["."], "top_n": 1},
    {"query": "blocks", "documents": ["a core, a core", "no"], "min_score": 1},
]
REFUSED = [
    {},
    {"query": "a"},
    {"documents": ["a"]},
    {"query": "", "documents": ["a"]},
    {"query": ["a"], "documents": ["a"]},
    {"query": "a", "documents": []},
    {"query": "a", "documents": "a"},
    {"query": "a", "documents": ["a", ""]},
    {"query": "a", "documents": ["a", 1]},
    {"query": "a", "documents": ["a"], "top_n": 0},
    {"query": "a", "documents": ["a"], "top_n": 1.5},
    {"query": "a", "documents": ["a"], "top_n": True},
    {"query": "a", "documents": ["a"], "min_score": 1.1},
    {"query": "a", "documents": ["a"], "min_score": -1.1},
    {"query": "a", "documents": ["a"], "min_score": "0"},
    {"query": "a", "documents": ["a"], "return_documents": 1},
    {"query": "a", "documents": ["a"], "top_k": 1},
]

RERANK = (
    IOExamples(
        write=lambda folder: write_checkpoint(folder, "qwen3"),
        bodies=BODIES,
        refused=REFUSED,
        expected=expected,
    ),
    IOExamples(
        write=lambda folder: write_checkpoint(folder, "qwen3"),
        bodies=BODIES,
        refused=[*REFUSED, {"query": "a", "documents": ["a"] * 5}],
        options={"max_documents": 4, "skip_punctuation": False},
        expected=expected,
    ),
)

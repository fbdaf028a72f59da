"""Examples for the conformance kit: a tiny checkpoint, which needs transformers, request bodies, and their answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import exp
from typing import Any

from llmk.api import IOContext, IOOutput, IOPrompt
from llmk_testing.checkpoints import write_checkpoint
from llmk_testing.suites.io_processor import IOExamples


def expected(context: IOContext, body: Mapping[str, Any], model: Callable[[IOPrompt], IOOutput]) -> Any:
    """The answer, by the plainest code; ``model`` returns all of the output of a prompt."""
    normalize = body.get("normalize", context.options.get("normalize", "none"))
    results, right = [], []
    for question in body["questions"]:
        choices = []
        for choice in question["choices"]:
            text = question["context"] + choice
            tokens = context.tokenizer.encode(text, add_special_tokens=False)
            alone = context.tokenizer.encode(question["context"], add_special_tokens=False)
            around = context.tokenizer.encode(text)
            lead = 0
            while around[lead : lead + len(tokens)] != tokens:
                lead += 1
            pairs = enumerate(zip(tokens, alone, strict=False))
            shared = next((place for place, (one, other) in pairs if one != other), min(len(tokens), len(alone)))
            before = around[:lead]
            if shared == len(tokens) or not before + tokens[:shared]:
                tokens = alone + context.tokenizer.encode(choice, add_special_tokens=False)
                shared = len(alone)
            first = max(1, lead + shared)
            logprobs = model(IOPrompt(prompt=before + tokens, returns="logprobs")).logprobs[first:]
            total = sum(max(logprob or 0.0, -10000.0) for logprob in logprobs)
            score = {"none": total, "token": total / len(logprobs), "byte": total / len(choice.encode())}[normalize]
            choices.append({"text": choice, "tokens": len(logprobs), "logprob": total, "score": score})
        best = max(range(len(choices)), key=lambda place: choices[place]["score"])
        top = choices[best]["score"]
        for choice in choices:
            choice["probability"] = exp(choice["score"] - top) / sum(exp(each["score"] - top) for each in choices)
        results.append({"best": best, "choices": choices})
        if "answer" in question:
            right.append(float(best == question["answer"]))
    return {"results": results, "accuracy": sum(right) / len(right) if right else None}


CORE = {"context": "a small core", "choices": [" which blocks they own", " a", " core core"]}
BLOCKS = {"context": "which blocks", "choices": ["they own", " they own"], "answer": 1}
BODIES = [
    {"questions": [CORE]},
    {"questions": [CORE], "normalize": "token"},
    {"questions": [BLOCKS, {**CORE, "answer": 0}, CORE], "normalize": "byte"},
    {"questions": [{"context": "na\u00efve ", "choices": ["\u00fcber", "uber", "\u6838\u5fc3"], "answer": 2}]},
    {"questions": [{"context": "a", "choices": ["b", "c"]}, BLOCKS], "normalize": "none"},
]
REFUSED = [
    {},
    {"questions": []},
    {"questions": "a"},
    {"questions": ["a"]},
    {"questions": [{"choices": ["a", "b"]}]},
    {"questions": [{"context": "", "choices": ["a", "b"]}]},
    {"questions": [{"context": "a", "choices": ["b"]}]},
    {"questions": [{"context": "a", "choices": []}]},
    {"questions": [{"context": "a", "choices": ["a", ""]}]},
    {"questions": [{"context": "a", "choices": ["a", 1]}]},
    {"questions": [CORE, {**CORE, "answer": 3}]},
    {"questions": [{**CORE, "answer": -1}]},
    {"questions": [{**CORE, "answer": True}]},
    {"questions": [{**CORE, "answer": 0.5}]},
    {"questions": [{**CORE, "label": 1}]},
    {"questions": [CORE], "normalize": "words"},
    {"questions": [CORE], "normalise": "byte"},
]


CHOICES = [
    IOExamples(
        write=lambda folder: write_checkpoint(folder, "qwen3"),
        bodies=BODIES,
        refused=REFUSED,
        tolerance=1e-4,
        expected=expected,
    ),
    IOExamples(
        write=lambda folder: write_checkpoint(folder, "qwen3"),
        bodies=BODIES,
        refused=[*REFUSED, {"questions": [{"context": "a", "choices": ["a", "b", "c", "d"]}]}],
        options={"normalize": "byte", "max_choices": 3},
        tolerance=1e-4,
        expected=expected,
    ),
]

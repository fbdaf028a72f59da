"""Examples for the conformance kit: parameters that change logits differently, and the logits expected of a row."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from llmk_testing.logits_examples import LogitsExamples, Parameters


def expected(logits: Tensor, tokens: Sequence[int], num_prompt_tokens: int, parameters: Parameters) -> Tensor:
    """The logits of one request, by the plainest code."""
    vocab_size = len(logits)
    allowed = int(parameters.get("allowed_length", 2))
    breakers = {vocab_size, *(int(each) for each in parameters.get("breakers", ()))}
    seen = int(parameters.get("range", 0))
    text = list(tokens[-seen:] if seen else tokens)
    longest: dict[int, int] = {}
    for end in range(1, len(text)):
        length = 0
        while length < min(end, 50) and text[end - 1 - length] == text[-1 - length] not in breakers:
            length += 1
        if text[end] not in breakers:
            longest[text[end]] = max(longest.get(text[end], 0), length)
    for token, length in longest.items():
        if length >= allowed:
            logits[token] -= parameters["multiplier"] * parameters.get("base", 1.75) ** (length - allowed)
    return logits


DRY = LogitsExamples(
    parameters=[
        {"multiplier": 0.8},
        {"multiplier": 2.5, "base": 1.5, "allowed_length": 1},
        {"multiplier": 0},
        {"multiplier": 100, "base": 4, "allowed_length": 50},
        {"multiplier": 1.25, "base": 1, "allowed_length": 1, "range": 1},
        {"multiplier": 3, "base": 1.1, "allowed_length": 1, "range": 12},
        {"multiplier": 1, "allowed_length": 1, "breakers": [0, 3, 7]},
        {"multiplier": 1, "base": 2, "allowed_length": 1, "range": 2147483647, "breakers": list(range(32))},
        {"multiplier": 0.5, "allowed_length": 1, "range": 0, "breakers": []},
    ],
    refused=[
        {},
        {"multiplier": -0.1},
        {"multiplier": 100.1},
        {"multiplier": True},
        {"multiplier": "1"},
        {"multiplier": 1, "base": 0.9},
        {"multiplier": 1, "base": 4.1},
        {"multiplier": 1, "allowed_length": 0},
        {"multiplier": 1, "allowed_length": 51},
        {"multiplier": 1, "allowed_length": 1.5},
        {"multiplier": 1, "range": -1},
        {"multiplier": 1, "range": 2147483648},
        {"multiplier": 1, "breakers": [-1]},
        {"multiplier": 1, "breakers": [True]},
        {"multiplier": 1, "breakers": [10**9]},
        {"multiplier": 1, "breakers": 1},
        {"multiplier": 1, "breakers": list(range(33))},
        {"multiplier": 1, "penalty_last_n": 1},
    ],
    expected=expected,
)

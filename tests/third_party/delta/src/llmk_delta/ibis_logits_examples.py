"""Examples for the conformance kit: parameters that change logits differently, and the logits expected of a row."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from llmk_testing.logits_examples import LogitsExamples, Parameters


def expected(logits: Tensor, tokens: Sequence[int], num_prompt_tokens: int, parameters: Parameters) -> Tensor:
    """The logits of one request, by the plainest code: each place of the window is compared with the end."""
    vocab = len(logits)
    text = list(tokens)[-int(parameters.get("window", 1024)) :]
    breakers = {vocab, *parameters.get("sequence_breakers", [])}
    allowed = int(parameters.get("allowed_length", 2))
    longest: dict[int, int] = {}
    for place in range(1, len(text)):
        length = 0
        while length < min(24, place) and text[place - 1 - length] == text[-1 - length] not in breakers:
            length += 1
        if text[place] not in breakers:
            longest[text[place]] = max(length, longest.get(text[place], 0))
    for token, length in longest.items():
        if length >= allowed:
            logits[token] -= parameters["multiplier"] * parameters.get("base", 1.75) ** (length - allowed)
    return logits


DRY = LogitsExamples(
    parameters=[
        {"multiplier": 0.8},
        {"multiplier": 100, "base": 4, "allowed_length": 1, "window": 4096},
        {"multiplier": 2, "base": 1, "allowed_length": 16},
        {"multiplier": 1.5, "allowed_length": 1, "window": 12, "sequence_breakers": [3]},
        {"multiplier": 3, "base": 1.2, "allowed_length": 1, "sequence_breakers": [0, 1, 2, 3, 4, 5, 6, 7]},
        {"multiplier": 0},
        {"multiplier": 1, "window": 1},
        {"multiplier": 1, "sequence_breakers": []},
    ],
    refused=[
        {},
        {"multiplier": -0.1},
        {"multiplier": 100.1},
        {"multiplier": True},
        {"multiplier": 1, "base": 0.9},
        {"multiplier": 1, "base": 4.1},
        {"multiplier": 1, "allowed_length": 0},
        {"multiplier": 1, "allowed_length": 17},
        {"multiplier": 1, "allowed_length": 2.5},
        {"multiplier": 1, "window": 0},
        {"multiplier": 1, "window": 4097},
        {"multiplier": 1, "sequence_breakers": 3},
        {"multiplier": 1, "sequence_breakers": [-1]},
        {"multiplier": 1, "sequence_breakers": [1.5]},
        {"multiplier": 1, "sequence_breakers": [0] * 9},
        {"multiplier": 1, "other": 1},
    ],
    expected=expected,
)

"""Examples for the conformance kit: parameters that change logits differently, and the logits expected of a row."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from llmk_testing.logits_examples import LogitsExamples, Parameters


def expected(logits: Tensor, tokens: Sequence[int], num_prompt_tokens: int, parameters: Parameters) -> Tensor:
    """The logits of one request, by the plainest code."""
    if tokens[-1] < len(logits):  # not an embedding in place of a token
        logits[tokens[-1]] -= parameters["penalty"]
    return logits


NO_STUTTER = LogitsExamples(
    parameters=[{"penalty": 1.5}, {"penalty": 6}, {"penalty": 0}, {"penalty": 100}],
    refused=[{}, {"penalty": -0.1}, {"penalty": 100.1}, {"penalty": True}, {"penalty": 1, "other": 1}],
    expected=expected,
)

"""What a logits processor is tried on: parameters, and a plain oracle of one row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

Parameters = Mapping[str, Any]
Expected = Callable[[Tensor, Sequence[int], int, Parameters], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsExamples:
    """``LogitsProcessorSpec.examples`` names one, or a sequence of parameters alone.

    ``parameters`` are valid ones, with all options and the ends of their ranges, of which at least two change logits
    differently; ``refused`` are invalid ones, just beyond the ends. ``expected(logits, tokens, num_prompt_tokens,
    parameters)`` returns the logits ``[vocab]`` of one request, float32, by the plainest code: from those of the model,
    and all tokens of the request so far, of which those of the vocabulary's size are embeddings in a token's place (an
    oracle may raise ``IndexError`` for these; its row is then not compared). If it takes time in proportion to the
    tokens, it is asked about tens of thousands. ``tolerance`` is relative.
    """

    parameters: Sequence[Parameters]
    refused: Sequence[Parameters] = ()
    expected: Expected | None = None
    tolerance: float = 1e-5

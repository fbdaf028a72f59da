"""Examples of hyper-connections for the conformance kit, by which ``llmk tune`` measures their kernels, too."""

from __future__ import annotations

from typing import Any

import torch

from llmk.reference.op_examples import Draw, Facts, OpExamples

_LIKE_MODELS = {"num_streams": 4, "iterations": 20}


def arguments(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    """Matrices near to the identity, as trained ones are; in every third row, logits lie far apart."""
    size, count = facts["size"], facts["num_streams"]
    diagonal = torch.eye(count, device=draw.random.device)
    mix = draw.reals(rows, count, count) + 3 * diagonal
    mix[::3] *= 40
    streams, out = draw.floats(rows, count, size), draw.floats(rows, size, scale=2.0)
    return streams, out, mix, draw.reals(rows, count), draw.reals(rows, count), facts["iterations"]


def measured(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    """What a step of a trained model has."""
    size, count = facts["size"], facts["num_streams"]
    mix = draw.reals(rows, count, count) + 3 * torch.eye(count, device=draw.random.device)
    gates = draw.reals(rows, count), draw.reals(rows, count)
    return draw.floats(rows, count, size), draw.floats(rows, size), mix, *gates, facts["iterations"]


HYPER_CONNECT = OpExamples(
    (
        {"size": 128, **_LIKE_MODELS},
        {"size": 33, "num_streams": 2, "iterations": 1},
        {"size": 72, "num_streams": 3, "iterations": 5},
        {"size": 40, "num_streams": 8, "iterations": 3},
        {"size": 2049, **_LIKE_MODELS},
    ),
    arguments,
    benchmark=measured,
    by_row=("streams", "out", "mix", "post", "pre"),
    wide=("out",),
    strided=("streams", "out", "mix", "post", "pre"),
    float32=("streams", "out"),
)

"""Sampling in JAX draws what ``llmk.reference`` draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from llmk.reference.sampling.counter_rng import uniform_bits
from llmk.reference.sampling.sample import sample as reference

pytest.importorskip("jax", reason="JAX is not installed: pip install 'llmk-backends-tpu[jax]'")


def test_random_numbers() -> None:
    from llmk_tpu.sampling import random_halves

    seeds, positions = [0, 1, -1, 2**63 - 1, -(2**63), 12345], [0, 1, 7, 1 << 30, 3, 999]
    expected = uniform_bits(torch.tensor(seeds), torch.tensor(positions), 40).tolist()
    found = [random_halves(*pair) for pair in zip(seeds, positions, strict=True)]
    assert [(high << 20) + low for high, low in found] == expected


@pytest.mark.parametrize("vocab", [37, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 3001))])
def test_tokens(vocab: int) -> None:
    """Rows are greedy, plain, and cut by top-k, top-p and min-p, alone and together; some logits are equal."""
    import jax

    from llmk_tpu.sampling import Controls, random_halves, sample

    draw = np.random.default_rng(vocab)
    rows = 64
    logits = draw.normal(size=(rows, vocab), scale=3).astype(np.float32).round(1)
    temperature = draw.choice([0.0, 0.5, 1.0, 1.7], rows).astype(np.float32)
    top_k = draw.choice([0, 1, 5, 40, 10_000], rows)
    top_p = draw.choice([1.0, 0.1, 0.9, 1e-9], rows).astype(np.float32)
    min_p = draw.choice([0.0, 0.05, 1.0], rows).astype(np.float32)
    seeds, positions = draw.integers(-(2**62), 2**62, rows), draw.integers(0, 1000, rows)
    halves = np.array([random_halves(*map(int, pair)) for pair in zip(seeds, positions, strict=True)], np.int32)
    controls = Controls(temperature, top_k.astype(np.int32), top_p, min_p, *halves.T)
    found = np.asarray(jax.jit(sample)(logits, controls))
    given = (temperature, top_k, top_p, min_p, seeds, positions)
    expected = reference(torch.from_numpy(logits), *map(torch.from_numpy, given))
    assert found.tolist() == expected.tolist()
    assert vocab == 1 or len(set(found.tolist())) > 5

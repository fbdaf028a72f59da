"""Frequencies of rotary embeddings equal those of the torch reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from llmk.api import CheckpointError
from llmk.reference.rope.scaling import inverse_frequencies as reference
from llmk.tree import Rope
from llmk_tpu.rope import FREQUENCIES, inverse_frequencies
from llmk_tpu.support import ROPE_TYPES

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "part": {"rope_type": "default", "partial_rotary_factor": 0.3, "rope_theta": 1e6},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "llama3": {**LLAMA3, "original_max_position_embeddings": 300},
    "llama3-without-original": LLAMA3,
    "yarn": YARN,
    "yarn-of-lengths": {"rope_type": "yarn", "original_max_position_embeddings": 512},
    "yarn-exact-ramp": {**YARN, "truncate": False, "beta_fast": 20.0, "beta_slow": 2.0},
    "yarn-narrow-ramp": {**YARN, "beta_fast": 2.0, "beta_slow": 2.0, "truncate": False},
    "yarn-scaled": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.1},
    "yarn-factor": {**YARN, "attention_factor": 1.5},
    "yarn-shrunk": {**YARN, "factor": 0.5},
}


@pytest.mark.parametrize("dim", [8, 34, 128])
@pytest.mark.parametrize("name", SETTINGS)
def test_equal_the_reference(name: str, dim: int) -> None:
    settings = {"rope_theta": 10000.0, **SETTINGS[name]}
    found, scaling = inverse_frequencies(Rope.with_settings(dim, 2048, settings))
    expected, expected_scaling = reference(settings, dim, 2048, 10000.0)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected.numpy(), rtol=3e-6)
    assert scaling == pytest.approx(expected_scaling)


def test_settings_cover_all_types() -> None:
    assert {settings["rope_type"] for settings in SETTINGS.values()} == set(FREQUENCIES) == set(ROPE_TYPES)


def test_a_missing_parameter_is_named() -> None:
    rope = Rope.with_settings(8, 64, {"rope_type": "linear", "rope_theta": 10000.0})
    with pytest.raises(CheckpointError, match=r"type 'linear' lack 'factor'; they have rope_theta, rope_type"):
        inverse_frequencies(rope)

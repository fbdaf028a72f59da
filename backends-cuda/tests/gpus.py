"""Whether tests that need a GPU can run here; where not, the reason that they are skipped with."""

from __future__ import annotations

import pytest

from llmk.api import Host
from llmk_cuda.probe import probe

ANSWER = probe(Host())
FACTS = ANSWER.facts if ANSWER.verdict else None
FP8 = FACTS is not None and "fp8" in FACTS.features

_FOUND = ", ".join(reason.code for reason in ANSWER.verdict.reasons)
needs_gpu = pytest.mark.skipif(FACTS is None, reason=f"needs a usable NVIDIA GPU: {_FOUND}")
needs_hopper = pytest.mark.skipif(
    FACTS is None or FACTS.arch_version[0] != 9, reason=f"needs sm_90, found {FACTS.arch if FACTS else 'no usable GPU'}"
)

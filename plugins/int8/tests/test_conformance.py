"""The wheel conforms to the contracts of what it registers."""

from __future__ import annotations

import pytest

from llmk_testing import conformance

pytestmark = pytest.mark.slow

test_conformance = conformance("llmk-int8")

"""What this wheel registers passes the conformance kit."""

from __future__ import annotations

import pytest

from llmk_testing import conformance

pytestmark = pytest.mark.slow

test_conformance = conformance("llmk-hub")

"""The wheel conforms to the contracts of what it registers."""

from __future__ import annotations

from llmk.testing import conformance

test_conformance = conformance("llmk-int8")

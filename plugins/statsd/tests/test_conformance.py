"""What this wheel registers passes the conformance kit."""

from __future__ import annotations

from llmk.testing import conformance

test_conformance = conformance("llmk-statsd")

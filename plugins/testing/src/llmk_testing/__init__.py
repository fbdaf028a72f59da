"""The conformance kit for plugin authors: ``llmk plugins check``, a pytest plugin, and the checks that both run.

In a test file, ``test_conformance = conformance("llmk-acme")`` makes a test of every case of an installed distribution.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmk_testing.plugin import conformance

__all__ = ["conformance"]


def __getattr__(name: str) -> Any:
    if name != "conformance":
        raise AttributeError(f"module 'llmk_testing' has no attribute {name!r}")
    from llmk_testing.plugin import conformance  # which needs pytest; the rest of llmk_testing doesn't

    return conformance

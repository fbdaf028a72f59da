"""Distributions of strangers bring tests of their own, which run where they are installed."""

from __future__ import annotations

collect_ignore = ["accelerator", "estuary", "fjord", "harbor", "hosts", "meadow", "orchard"]

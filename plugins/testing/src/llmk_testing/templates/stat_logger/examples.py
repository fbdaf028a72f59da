"""Examples for the conformance kit: sections ``[plugin.acme]``, as users may write them."""

from typing import Any

LINES: tuple[dict[str, Any], ...] = ({}, {"file": "other.jsonl"})

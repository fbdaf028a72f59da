"""What the conformance kit tries the logger with: sections ``[plugin.acme]``, as users may write them."""

from typing import Any

LINES: tuple[dict[str, Any], ...] = ({}, {"file": "other.jsonl"})

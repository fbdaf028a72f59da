"""The section ``[plugin.rail]`` that the conformance kit tries the launcher with."""

from __future__ import annotations

SECTION = {"devices": [f"lagoon:{number}" for number in range(12)], "wait_seconds": 2.0}

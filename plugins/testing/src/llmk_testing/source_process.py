"""Gets a model in a process of its own, which has no torch and may end in the middle.

Run as ``python -m llmk_testing.source_process`` with a JSON list of the implementation, the cache, the options, the
model's name, and the number of the call of ``progress`` in which the process ends; 0: it ends when the model is there.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from llmk.api import ModelSourceContext
from llmk.kernel.loader import load_object

ENDED = 86
"""The exit code of a process that ends in the middle."""


def main() -> None:
    """Gets the model that the argument names."""
    implementation, cache, options, name, end_in = json.loads(sys.argv[1])
    calls = 0

    def progress(done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        if calls == end_in:
            os._exit(ENDED)

    source = load_object(implementation)(ModelSourceContext(Path(cache), options))
    source.fetch(name, progress, outline=False)


if __name__ == "__main__":
    main()

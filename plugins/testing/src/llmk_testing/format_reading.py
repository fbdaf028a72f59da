"""Reads what a checkpoint means, all but its tensors' values, in a process that has no torch.

Run as ``python -m llmk_testing.format_reading`` with a JSON list of the implementation, the folder, the file's name and
the options.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from llmk.api import CheckpointFile
from llmk.kernel.loader import load_object


def main() -> None:
    """Reads the file that the argument names."""
    implementation, folder, name, options = json.loads(sys.argv[1])
    checkpoint = load_object(implementation)([CheckpointFile(Path(folder).resolve(), name)], options)
    checkpoint.reader.tokenizer()
    list(checkpoint.reader.tensors())


if __name__ == "__main__":
    main()

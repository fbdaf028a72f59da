"""Examples for the conformance kit: how the command is called, the files that it reads, and what it prints."""

from __future__ import annotations

import json
from pathlib import Path

from llmk_testing.command_example import CommandExample

ONE = {"model_type": "llama", "rope_scaling": {"factor": 2.0}, "eos_token_id": 2, "tie_word_embeddings": False}
OTHER = {"model_type": "llama", "rope_scaling": {"factor": 4.0}, "eos_token_id": [2, 3], "hidden_act": "\u00e9"}
TEXT = """\
eos_token_id: 2 -> [2, 3]
hidden_act: (absent) -> "\\u00e9"
rope_scaling.factor: 2.0 -> 4.0
tie_word_embeddings: false -> (absent)
"""


def write(folder: Path) -> None:
    """Two checkpoints, of which the command reads this file alone."""
    for name, config in (("one", ONE), ("other", OTHER)):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))


def check_json(printed: str) -> None:
    """Keys may come in any order."""
    assert json.loads(printed)["eos_token_id"] == [2, [2, 3]]


COMPARE = (
    CommandExample(arguments=("one", "other"), write=write, prints=TEXT, code=1, whole=True),
    CommandExample(arguments=("one", "one"), write=write),
    CommandExample(arguments=("one", "other", "--json"), write=write, prints=check_json, code=1, whole=True),
)

"""``lm-eval``, with completions and chat, on tasks that need nothing from elsewhere."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
HOME = Path(tempfile.mkdtemp())
os.environ["HF_HOME"] = str(HOME / "home")

from suite import MODEL, ROOT, URL, run  # noqa: E402

os.environ["OPENAI_API_KEY"] = "none"
(HOME / "data.jsonl").write_text(
    "".join(json.dumps({"question": f"{n} + 1 =", "answer": f" {n + 1}"}) + "\n" for n in range(4))
)
COMMON: dict[str, Any] = {
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"test": str(HOME / "data.jsonl")}},
    "test_split": "test",
    "doc_to_text": "{{question}}",
    "doc_to_target": "{{answer}}",
}
GENERATE = {
    "task": "sums",
    "output_type": "generate_until",
    "generation_kwargs": {"until": ["\n"], "max_gen_toks": 8},
    "metric_list": [{"metric": "exact_match"}],
}
CHOOSE = {
    "task": "choices",
    "output_type": "multiple_choice",
    "doc_to_choice": [" 1", " 2"],
    "doc_to_target": 0,
    "metric_list": [{"metric": "acc"}],
}


def evaluated(kind: str, route: str, task: dict[str, Any], **options: Any) -> dict[str, Any]:
    from lm_eval import simple_evaluate

    where = {"model": MODEL, "base_url": f"{URL}/{route}", **options}
    made: Any = simple_evaluate(
        kind, where, tasks=[{**COMMON, **task}], apply_chat_template=kind.endswith("chat-completions")
    )
    return made["results"][task["task"]]


def check_chat() -> None:
    found = evaluated("local-chat-completions", "chat/completions", GENERATE, num_concurrent=1)
    assert "exact_match,none" in found


def check_completions() -> None:
    for task, metric in ((GENERATE, "exact_match,none"), (CHOOSE, "acc,none")):
        found = evaluated("local-completions", "completions", task, tokenizer_backend="remote")
        assert metric in found, ROOT


if __name__ == "__main__":
    run(globals(), "lm-eval")

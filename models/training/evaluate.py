"""Asks the model held-out questions and prints how many answers are right.

    python models/training/evaluate.py --per-category 100

Every question comes from the test split, so none of them is in the training data. Answers are decoded greedily
with transformers. The table goes to standard output, the figures and some wrong answers to ``evaluation.json``.
"""

import argparse
import json
import re
from collections import defaultdict
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, Qwen3ForCausalLM

from corpus import Call, Check, Sample, samples
from rendering import ChatTemplate
from train import DEMO

FIGURES = Path(__file__).with_name("evaluation.json")
CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)
ADMITS = ("not know", "no tool", "not have a tool", "beyond me", "none of my tools", "have not told", "cannot help")
DRAWS = 300
"""Samples drawn for each question wanted of a category."""
LONGEST_REPLY = 700
"""Tokens after which an answer is cut."""


@dataclass(frozen=True)
class Reply:
    """A reply taken apart: reasoning (None without a think block), answer text, tool calls (None if not JSON)."""

    thought: str | None
    text: str
    calls: list[Call] | None
    ended: bool

    @classmethod
    def of(cls, text: str) -> "Reply":
        """Parse decoded text; ``ended`` says whether the end token was written."""
        ended = "<|im_end|>" in text
        text = text.split("<|im_end|>")[0]
        thought = None
        if text.startswith("<think>"):
            thought, _, text = text.removeprefix("<think>").partition("</think>")
        calls: list[Call] | None = []
        for body in CALL.findall(text):
            try:
                parsed = json.loads(body)
                calls = None if calls is None else [*calls, Call(parsed["name"], parsed["arguments"])]
            except (ValueError, KeyError, TypeError):
                calls = None
        return cls(thought, CALL.sub("", text).strip("\n"), calls, ended)


def _json(text: str) -> Any:
    """The parsed text, or the exception class where it is not JSON (which equals no value)."""
    try:
        return json.loads(text)
    except ValueError:
        return ValueError


def right(check: Check, reply: Reply) -> bool:
    """Whether the reply passes the check."""
    text, lower = reply.text, reply.text.lower()
    if check.kind == "calls":
        return reply.calls == check.value
    if reply.calls != [] or not reply.ended:
        return False
    return {
        "has": lambda: all(
            re.search(rf"(?<![\d.]){re.escape(part.strip().lower())}(?!\.?\d)", lower) for part in check.value
        ),
        "is": lambda: text == check.value,
        "json": lambda: _json(text) == check.value if check.value is not None else _json(text) is not ValueError,
        "prose": lambda: len(text.split()) >= min(check.value, 8) and text[-1] in ".!?\"'ABCDEFGHIJKLMNOPQRSTUVWXYZ",
        "unknown": lambda: any(part in lower for part in ADMITS),
        "case": lambda: text == (text.upper() if check.value == "upper" else text.lower()),
        "count": lambda: len(re.split(r"\n|, | and ", text)) == check.value,
    }[check.kind]()


class Model:
    """The checkpoint in transformers, answering batches of prompts."""

    def __init__(self, folder: Path, device: str) -> None:
        self.device = device
        self.tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self.network = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(device).eval()

    def answer(self, prompts: list[str]) -> list[str]:
        """Greedy continuations, end token kept."""
        batch = self.tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False).to(self.device)
        with torch.no_grad():
            greedy = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
            out = self.network.generate(**batch, **greedy, max_new_tokens=LONGEST_REPLY)
        return self.tokenizer.batch_decode(out[:, batch["input_ids"].shape[1] :], skip_special_tokens=False)


def questions(per_category: int, seed: int) -> list[Sample]:
    """The same number of test samples for each category and thinking mode, as far as DRAWS draws go."""
    chosen: dict[tuple[str, bool], list[Sample]] = defaultdict(list)
    for sample in islice(samples(seed, "test"), DRAWS * per_category):
        group = chosen[sample.category, sample.thinking]
        if len(group) < per_category:
            group.append(sample)
    return [sample for group in chosen.values() for sample in group]


def measure(model: Model, asked: list[Sample], batch: int) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """Figures by category and mode, and examples of wrong answers."""
    template = ChatTemplate.of(DEMO)
    asked = sorted(
        asked,
        key=lambda sample: (sample.thinking, sample.category in ("stories", "counting"), len(str(sample.messages))),
    )
    counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    wrong: list[dict[str, str]] = []
    for start in range(0, len(asked), batch):
        part = asked[start : start + batch]
        prompts = [template.prompt(sample) for sample in part]
        for sample, prompt, text in zip(part, prompts, model.answer(prompts), strict=True):
            reply = Reply.of(text)
            mode = "on" if sample.thinking else "off"
            good = right(sample.check, reply)
            figures = counts[sample.category]
            figures[f"asked_{mode}"] += 1
            figures[f"right_{mode}"] += good
            figures["mode_kept"] += (reply.thought is not None) == sample.thinking
            figures["ended"] += reply.ended
            if sample.check.kind == "calls":
                figures["calls_parse"] += bool(reply.calls)
                figures["calls_right_tool"] += [call.name for call in reply.calls or []] == [
                    call.name for call in sample.calls
                ]
            if not good:
                wrong.append(
                    {
                        "category": sample.category,
                        "prompt": prompt,
                        "reply": text.split("<|endoftext|>")[0],
                        "wanted": str(sample.check),
                    }
                )
    return {category: dict(figures) for category, figures in sorted(counts.items())}, wrong


def table(figures: dict[str, Any]) -> str:
    """The figures as a human-readable table."""
    titles = ("asked", "right, off", "right, on", "mode kept", "tool right", "JSON valid")
    lines = [f"{'category':16}" + "".join(f"{title:>12}" for title in titles)]

    def share(part: int, whole: int) -> str:
        return f"{100 * part / whole:.1f}%" if whole else "-"

    for category, row in figures.items():
        off, on = row.get("asked_off", 0), row.get("asked_on", 0)
        calls = off + on if "calls_parse" in row else 0
        cells = (
            share(row.get("right_off", 0), off),
            share(row.get("right_on", 0), on),
            share(row["mode_kept"], off + on),
            share(row.get("calls_right_tool", 0), calls),
            share(row.get("calls_parse", 0), calls),
        )
        lines.append(f"{category:16}" + "".join(f"{cell:>12}" for cell in (off + on, *cells)))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=DEMO, help="checkpoint folder")
    parser.add_argument("--per-category", type=int, default=50, help="questions for each category and thinking mode")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=FIGURES)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    asked = questions(options.per_category, options.seed)
    figures, wrong = measure(Model(options.model, options.device), asked, options.batch)
    print(table(figures))
    content = {
        "per_category": options.per_category,
        "seed": options.seed,
        "figures": figures,
        "wrong": wrong[:: max(1, len(wrong) // 150)],
    }
    options.out.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""What constrained outputs cost a full batch: tokens per second of decoding with a grammar in every row, and with none.

    python benchmarks/mask_cost.py MODEL                             # 64 rows of JSON under a schema, 64 free ones
    python benchmarks/mask_cost.py MODEL --set model.load_format=dummy --requests 16

Rounds of both kinds alternate, in one engine. Every output has the same length, as the schema's list is longer than it
and free rows ignore the end of text; the time of short outputs is subtracted, so that what remains is decoding.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

from llmk import LLM, SamplingParams

ITEM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "price": {"type": "number"},
        "tags": {"type": "array", "items": {"enum": ["new", "used", "rare"]}, "maxItems": 3},
    },
    "required": ["name", "price", "tags"],
    "additionalProperties": False,
}
SCHEMA = {"type": "array", "items": ITEM, "minItems": 500}


def seconds(llm: LLM, requests: int, new: int, prompt: int, constrained: bool, round_: int) -> float:
    """What ``requests`` outputs of ``new`` tokens take."""
    outputs: dict[str, Any] = {"structured_outputs": {"json": SCHEMA}} if constrained else {"ignore_eos": True}
    params = SamplingParams(max_tokens=new, temperature=1.0, seed=1, **outputs)
    prompts = [f"{'x, ' * prompt}Order {round_}, {number}, as JSON: " for number in range(requests)]
    start = time.perf_counter()
    answers = llm.generate(prompts, params, use_tqdm=False)
    taken = time.perf_counter() - start
    lengths = {len(answer.outputs[0].token_ids) for answer in answers}
    if lengths != {new}:
        raise SystemExit(f"outputs of {sorted(lengths)} tokens instead of {new}: {answers[0].outputs[0].text[-200:]!r}")
    return taken


def main() -> None:
    """Prints a line of JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--new", type=int, default=256, help="tokens per output")
    parser.add_argument("--prompt", type=int, default=0, help="words before each prompt: longer contexts, slower steps")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="configuration")
    args = parser.parse_args()
    with LLM(args.model, **dict(setting.split("=", 1) for setting in args.set)) as llm:
        few = args.new // 8
        taken: dict[bool, list[float]] = {False: [], True: []}
        for round_ in range(-1, args.rounds):
            for constrained in taken:
                short = seconds(llm, args.requests, few, args.prompt, constrained, round_)
                whole = seconds(llm, args.requests, args.new, args.prompt, constrained, round_)
                if round_ >= 0:
                    taken[constrained].append(whole - short)
        tokens = args.requests * (args.new - few)
        ratios = [free / masked for free, masked in zip(taken[False], taken[True], strict=True)]
        line = {
            "requests": args.requests,
            "vocabulary": llm.boot.facts.vocab_size,
            "free_tok_s": round(tokens / statistics.median(taken[False])),
            "constrained_tok_s": round(tokens / statistics.median(taken[True])),
            "ms_per_step": round(1e3 * statistics.median(taken[False]) / (args.new - few), 2),
            "ratio": round(statistics.median(ratios), 3),
            "ratios": [round(ratio, 3) for ratio in ratios],
        }
        print(json.dumps(line))


if __name__ == "__main__":
    main()

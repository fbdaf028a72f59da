"""``llmk bench throughput`` and ``latency``: a model in this process, without a server."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmk.api import ConfigError
from llmk.config import flags
from llmk_bench.experiment import write
from llmk_bench.figures import distribution
from llmk_bench.prompts import Prompts

if TYPE_CHECKING:
    from llmk import LLM

SECTIONS = ("model", "platform", "select", "plugins", "engine", "scheduler", "speculation", "cache", "parallel")


class ThroughputCommand:
    """``llmk bench throughput``."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        _add_arguments(parser, requests=256, rounds=1)

    def run(self, args: argparse.Namespace) -> int:
        """Answers all requests at once, and prints tokens per second of each round."""
        with _open(args) as llm:
            _generate(llm, _prompts(llm, args, min(4, args.requests), -1), 4)
            rounds = []
            for number in range(args.rounds):
                prompts = _prompts(llm, args, args.requests, number)
                seconds, new = _generate(llm, prompts, args.output_tokens)
                given = sum(map(len, prompts))
                found = {"seconds": seconds, "requests_per_s": args.requests / seconds}
                found |= {"output_tokens_per_s": new / seconds, "total_tokens_per_s": (new + given) / seconds}
                rounds.append({name: round(value, 4) for name, value in found.items()})
                print(
                    f"{args.requests} requests, {args.prompt_tokens} tokens in, {args.output_tokens} out: "
                    f"{seconds:.2f} s, {found['requests_per_s']:.2f} requests/s, "
                    f"{found['output_tokens_per_s']:.1f} output tokens/s, {found['total_tokens_per_s']:.1f} tokens/s",
                    flush=True,
                )
            return _finish(args, llm, {"rounds": rounds})


class LatencyCommand:
    """``llmk bench latency``."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        _add_arguments(parser, requests=1, rounds=10)

    def run(self, args: argparse.Namespace) -> int:
        """Answers one batch after another, and prints what one takes: to its first token, and in all."""
        with _open(args) as llm:
            _generate(llm, _prompts(llm, args, args.requests, -1), args.output_tokens)
            first, whole = list[float](), list[float]()
            for number in range(args.rounds):
                first.append(_generate(llm, _prompts(llm, args, args.requests, 2 * number), 1)[0])
                whole.append(_generate(llm, _prompts(llm, args, args.requests, 2 * number + 1), args.output_tokens)[0])
            steps = args.output_tokens - 1
            per_token = (sorted(whole)[args.rounds // 2] - sorted(first)[args.rounds // 2]) / steps if steps else 0.0
            figures: dict[str, Any] = {"first_token_ms": distribution(first), "whole_ms": distribution(whole)}
            figures["per_token_ms"] = round(1e3 * per_token, 4)
            lengths = f"{args.prompt_tokens} tokens in, {args.output_tokens} out"
            print(f"batch of {args.requests}, {lengths}, {args.rounds} rounds")
            for name, label in (("first_token_ms", "first token"), ("whole_ms", "whole answer")):
                values = figures[name]
                print(f"  {label:14}{values['p50']:10.2f} ms   p90 {values['p90']:.2f}   p99 {values['p99']:.2f}")
            print(f"  {'per token':14}{figures['per_token_ms']:10.2f} ms")
            return _finish(args, llm, figures)


def _add_arguments(parser: argparse.ArgumentParser, *, requests: int, rounds: int) -> None:
    flags.add_model(parser)
    group = parser.add_argument_group("load")
    for name, default, text in (
        ("--requests", requests, "at once"),
        ("--prompt-tokens", 512, "of each prompt"),
        ("--output-tokens", 128, "of each answer"),
        ("--rounds", rounds, "measurements"),
    ):
        group.add_argument(name, type=int, default=default, metavar="N", help=f"{text} [%(default)s]")
    group.add_argument("--output", type=Path, metavar="FILE", help="the result, as JSON")
    flags.add_flags(parser, SECTIONS)


def _open(args: argparse.Namespace) -> LLM:
    from llmk import LLM

    for name in ("requests", "prompt_tokens", "output_tokens", "rounds"):
        if getattr(args, name) < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be 1 or more")
    if args.config_file:
        raise ConfigError("--config is not read here", hint="run it in the folder with llmk.toml, or use --set")
    llm = LLM(**flags.collect(args))
    length = args.prompt_tokens + args.output_tokens
    if length > llm.info.max_model_len:
        hint = "lower --prompt-tokens or --output-tokens"
        raise ConfigError(f"{length} tokens are more than the model's context of {llm.info.max_model_len}", hint=hint)
    return llm


def _prompts(llm: LLM, args: argparse.Namespace, count: int, number: int) -> list[list[int]]:
    """Random prompts, other ones for each ``number``, so that no prefix cache helps."""
    source = Prompts(prompt=args.prompt_tokens, vocabulary=llm.info.vocab_size, seed=number)
    return [talk.turns[0].prompt for talk in source.conversations(count)]  # type: ignore[misc]


def _generate(llm: LLM, prompts: list[list[int]], new: int) -> tuple[float, int]:
    """Seconds, and tokens of the answers."""
    from llmk import SamplingParams

    params = SamplingParams(max_tokens=new, temperature=0.0, ignore_eos=True)
    start = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=sys.stderr.isatty())
    return time.perf_counter() - start, sum(len(output.outputs[0].token_ids) for output in outputs)


def _finish(args: argparse.Namespace, llm: LLM, figures: dict[str, Any]) -> int:
    settings = {name: getattr(args, name) for name in ("requests", "prompt_tokens", "output_tokens")}
    made = {"model": llm.boot.checkpoint.path.name, "platform": llm.boot.plan.platform.label, **settings, **figures}
    if args.output:
        write(args.output, json.dumps(made, indent=1) + "\n")
    return 0

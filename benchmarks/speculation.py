"""What drafts gain: throughput with drafts against without, by turns on one engine, and tokens per step.

    python benchmarks/speculation.py                                     # the demo model repeats code
    python benchmarks/speculation.py --shape qwen3-8b --batch 1 8 64     # dummy weights of that shape
    python benchmarks/speculation.py --model DIR --use prompt_lookup_device

What is measured is decoding: from the step after which all requests have a token to the end of the last one. Prefix
caching is off, so that turns don't help each other. Drafts start anew in each row of the table, whose first turns warm
up and are not counted; ``first`` is the ratio of these.

How much is drafted depends on what steps of each size take. ``--free`` has as much drafted as may be accepted, for
tokens per step alone (``tok/step``).

With dummy weights, the next token is a fixed function of the last one, through all layers at their full cost, which
makes workloads exact:

- ``repeats``: the output is a cycle of 16 tokens.
- ``novel``: no token comes twice, so that nothing is drafted.
- ``misleading``: every pair of tokens of the output stands in the prompt, with another token behind it.

With real weights, ``repeats`` goes on with code that was repeated, greedily; ``novel`` samples behind random tokens.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from make_model import write_checkpoint
from shapes import SHAPES

from llmk.config import load
from llmk.engine.core import EngineCore
from llmk.engine.launch import build_core
from llmk.engine.scheduling.draft_length import StepCosts
from llmk.engine.scheduling.drafting import Drafting
from llmk.engine.text.tokenizer import Tokenizer
from llmk.engine.wire.request import EngineRequest
from llmk.engine.wire.sampling_params import SamplingParams
from llmk.nn.layer import Parameter
from llmk.planning.boot import Boot, boot

CYCLE = 16
"""Tokens after which the output of ``repeats`` repeats itself."""
EMBEDDING_STD = 100.0
"""Of dummy embeddings, which are to outweigh what all layers add to them."""
CODE = """def {0}_{1}(left, right):
    return left {2} right


"""
COLUMNS = "speculator | workload | batch | off tok/s | on tok/s | ratio | lowest | first | tok/step | accepted | equal"


@dataclass(frozen=True, slots=True)
class Turn:
    """What one run of a batch came to."""

    seconds: float
    num_tokens: int
    """Decoded in that time."""
    num_steps: int
    """In which these requests decoded, summed over requests."""
    tokens: list[list[int]]

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.num_tokens / self.seconds


class Free(StepCosts):
    """Steps of any size take as long."""

    def lacks(self, num_tokens: int) -> bool:
        """Nothing needs to be measured."""
        return False

    def __call__(self, num_tokens: int) -> float:
        """Relative time."""
        return 1.0


class Engine:
    """An engine that drafts, or doesn't, as it is needed."""

    def __init__(self, boot: Boot, *, free: bool) -> None:
        self.core: EngineCore
        self._boot = boot
        self._free = free
        self.core, self.info = build_core(boot)
        self._added = 0

    def draft(self, drafting: Drafting | None) -> None:
        """Has ``drafting`` draft from now on."""
        scheduler = self.core.scheduler
        scheduler._drafting = scheduler.live.drafting = drafting

    def drafting(self) -> Drafting:
        """Drafts that nothing is known of."""
        made = Drafting.load(self._boot)
        if made is None:
            raise SystemExit("nothing drafts: --use names no speculator")
        if self._free:
            made.length.costs = Free()
        return made

    def drafts(self) -> tuple[int, int]:
        """How many drafts were verified so far, and accepted."""
        stats = self.core.stats
        return sum(stats.drafted), sum(stats.accepted)

    def run(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> Turn:
        """Answers all of them at once."""
        core, outputs = self.core, dict[str, list[int]]()
        for prompt in prompts:
            outputs[f"{self._added}"] = []
            core.add(EngineRequest(id=f"{self._added}", prompt_token_ids=list(prompt), params=params))
            self._added += 1
        waiting, start, num_tokens, num_steps = set(outputs), 0.0, 0, 0
        while core.has_work:
            found = core.step().outputs
            if not waiting:
                num_tokens += sum(len(output.token_ids) for output in found)
                num_steps += len(found)
            for output in found:
                if output.finish_reason == "error":
                    raise SystemExit(f"request {output.id} failed: {output}")
                outputs[output.id] += output.token_ids
                waiting.discard(output.id)
            if not waiting and not start:
                start = time.perf_counter()
        return Turn(time.perf_counter() - start, num_tokens, num_steps, list(outputs.values()))

    def close(self) -> None:
        """Frees what it holds."""
        self.core.close()
        del self.core
        gc.collect()
        if torch.accelerator.is_available():
            torch.accelerator.memory.empty_cache()


class DummyWorkload:
    """Prompts for weights of :func:`chained`."""

    names = ("repeats", "novel", "misleading")

    def __init__(self, vocab_size: int, new: int) -> None:
        self._size, self._new = vocab_size, new

    def of(self, name: str, batch: int, seed: int) -> tuple[list[list[int]], SamplingParams]:
        """``batch`` prompts and how they are answered."""
        random = Random(seed)
        prompts = [self._prompt(name, number, random) for number in range(batch)]
        return prompts, SamplingParams(temperature=0, max_tokens=self._new, ignore_eos=True)

    def _prompt(self, name: str, number: int, random: Random) -> list[int]:
        half = self._size // 2 // CYCLE * CYCLE
        if name == "repeats":
            first = random.randrange(half // CYCLE) * CYCLE
            return [random.randrange(half, self._size) for _ in range(128)] + [first]
        first = half + (number * (self._new + 2) + random.randrange(self._size)) % (self._size - half)
        path = [half + (first - half + step) % (self._size - half) for step in range(self._new + 2)]
        if name == "novel":
            return [random.randrange(half) for _ in range(128)] + path[:1]
        return [token for at in range(self._new) for token in (*path[at : at + 2], random.randrange(half))] + path[:1]


class TextWorkload:
    """Prompts for weights that were trained."""

    names = ("repeats", "novel")

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, new: int) -> None:
        self._tokenizer, self._size, self._new = tokenizer, vocab_size, new

    def of(self, name: str, batch: int, seed: int) -> tuple[list[list[int]], SamplingParams]:
        """``batch`` prompts and how they are answered."""
        random = Random(seed)
        if name == "repeats":
            params = SamplingParams(temperature=0, max_tokens=self._new, ignore_eos=True)
            return [self._tokenizer.encode(self._code(random)) for _ in range(batch)], params
        params = SamplingParams(temperature=1, seed=seed, max_tokens=self._new, ignore_eos=True)
        return [[random.randrange(3, self._size) for _ in range(128)] for _ in range(batch)], params

    def _code(self, random: Random) -> str:
        verb, noun = random.choice(("add", "scale", "merge", "shift")), random.choice(("rows", "prices", "points"))
        return 8 * CODE.format(verb, noun, random.choice("+-*"))


@contextmanager
def chained() -> Iterator[None]:
    """Dummy weights whose next token is a function of the last one: :func:`successors`. Embeddings outweigh what layers
    add to them, and the head has the embedding of each token's predecessor."""
    fill = Parameter.fill

    def filled(parameter: Parameter, seed: int) -> None:
        (name, *others) = parameter.names
        is_head = name == "lm_head.weight"
        if others or not (is_head or name.endswith("embed_tokens.weight")):
            fill(parameter, seed)
            return
        shape = parameter.shape((0,))
        device = parameter._device
        values = torch.empty(shape, device=device).normal_(generator=torch.Generator(device).manual_seed(seed))
        if is_head:
            predecessors = torch.empty(shape[0], dtype=torch.int64, device=device)
            predecessors[successors(shape[0]).to(device)] = torch.arange(shape[0], device=device)
            values = 0.02 * values[predecessors]
        parameter.load((0,), values if is_head else EMBEDDING_STD * values)

    Parameter.fill = filled  # type: ignore[method-assign]
    try:
        yield
    finally:
        Parameter.fill = fill  # type: ignore[method-assign]


def successors(vocab_size: int) -> Tensor:
    """Of each token: the first half of the vocabulary has cycles of :data:`CYCLE`, the rest is one long cycle."""
    half = vocab_size // 2 // CYCLE * CYCLE
    short = torch.arange(half)
    short = short // CYCLE * CYCLE + (short + 1) % CYCLE
    return torch.cat([short, half + (torch.arange(vocab_size - half) + 1) % (vocab_size - half)])


def compare(engine: Engine, workload: Any, name: str, batch: int, reps: int, seconds: float) -> list[str]:
    """The row of the table of one workload and batch: ``reps`` pairs of turns, or as many as fit in ``seconds``."""
    drafting, deadline = engine.drafting(), time.perf_counter() + seconds
    pairs: list[tuple[Turn, Turn]] = []
    known = engine.drafts()
    equal = num_requests = 0
    while len(pairs) < 3 or (len(pairs) <= reps and time.perf_counter() < deadline):
        prompts, params = workload.of(name, batch, seed=len(pairs))
        turns: dict[bool, Turn] = {}
        for on in (False, True) if len(pairs) % 2 else (True, False):
            engine.draft(drafting if on else None)
            turns[on] = engine.run(prompts, params)
        pairs.append((turns[False], turns[True]))
        equal += sum(a == b for a, b in zip(turns[False].tokens, turns[True].tokens, strict=True))
        num_requests += batch
    drafted, accepted = (now - then for now, then in zip(engine.drafts(), known, strict=True))
    ratios = [on.rate / off.rate for off, on in pairs]
    rates = [statistics.median(pair[on].rate for pair in pairs[1:]) for on in (0, 1)]
    steps = sum(on.num_tokens for _, on in pairs[1:]) / sum(on.num_steps for _, on in pairs[1:])
    numbers = [statistics.median(ratios[1:]), min(ratios[1:]), ratios[0], steps]
    share = f"{accepted / drafted:.0%} of {drafted}" if drafted else "none drafted"
    return [*(f"{rate:.1f}" for rate in rates), *(f"{n:.3f}" for n in numbers), share, f"{equal}/{num_requests}"]


def settings_of(args: argparse.Namespace, use: str, folder: Path) -> dict[str, Any]:
    """The configuration of an engine; writes a checkpoint without weights to ``folder`` if there is to be none."""
    longest = 3 * args.new + args.new + 64 if args.shape else args.new + 900
    settings: dict[str, Any] = {
        "model.path": args.model,
        "model.max_model_len": longest,
        "scheduler.max_num_seqs": max(args.batch),
        "scheduler.max_num_batched_tokens": args.tokens,
        "cache.prefix_caching": False,
        "speculation.use": use,
        "speculation.num_drafts": args.num_drafts,
    }
    if args.shape:
        write_checkpoint(replace(SHAPES[args.shape], tie_word_embeddings=False), folder, weights=False)
        settings |= {"model.path": str(folder), "model.load_format": "dummy"}
    for setting in args.set:
        key, _, value = setting.partition("=")
        settings[key] = json.loads(value) if value[:1] in "tf0123456789[{" else value
    return settings


def measure(args: argparse.Namespace, use: str) -> None:
    """Prints the rows of one speculator."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        booted = boot(load(settings_of(args, use, Path(folder))))
        if args.shape:
            with chained():
                engine = Engine(booted, free=args.free)
            workload: Any = DummyWorkload(engine.info.vocab_size, args.new)
        else:
            engine = Engine(booted, free=args.free)
            workload = TextWorkload(Tokenizer.load(booted.checkpoint), engine.info.vocab_size, args.new)
    print(f"{use}: ready after {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    wanted = [name for name in args.workload or workload.names if name in workload.names]
    share = args.seconds / (len(args.use) * len(args.batch) * max(1, len(wanted)))
    for name in wanted:
        for batch in args.batch:
            row = compare(engine, workload, name, batch, args.reps, share)
            print("| " + " | ".join([use, name, str(batch), *row]) + " |", flush=True)
    engine.close()


def main() -> None:
    """Prints a table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="", help="checkpoint folder; empty: the demo model")
    parser.add_argument("--shape", default="", choices=["", *SHAPES], help="dummy weights of this shape instead")
    parser.add_argument("--use", nargs="+", default=["suffix_tree"], help="speculators, each on an engine of its own")
    parser.add_argument("--num-drafts", type=int, default=8)
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8, 64], help="requests that decode at once")
    parser.add_argument("--workload", nargs="+", default=[], help="of those above; all, unless given")
    parser.add_argument("--new", type=int, default=256, help="tokens that each request is answered with")
    parser.add_argument("--tokens", type=int, default=8192, help="most tokens of a step")
    parser.add_argument("--reps", type=int, default=5, help="pairs of turns that count, at most")
    parser.add_argument("--seconds", type=float, default=150.0, help="for all turns, without starting engines")
    parser.add_argument("--free", action="store_true", help="draft as if steps of any size took as long")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting")
    args = parser.parse_args()
    if args.model and args.shape:
        parser.error("--shape has dummy weights: leave out --model")
    logging.basicConfig(level=logging.WARNING)
    print(f"| {COLUMNS} |\n|" + " --- |" * len(COLUMNS.split(" | ")), flush=True)
    for use in args.use:
        measure(args, use)


if __name__ == "__main__":
    main()

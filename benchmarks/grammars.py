"""Structured outputs through the whole engine: are they valid, and what do they cost those that have none?

    python benchmarks/grammars.py --threads 1                      # 1,000 outputs of 100 schemas, regexes and choices
    python benchmarks/grammars.py --outputs 100 --rounds 50        # quick
    python benchmarks/grammars.py --set speculation.use=suffix_tree --trace trace.json

Constrained and free requests run in one batch, with two steps in flight. Every output that ended by itself is validated
by others than the compiler (``jsonschema``, ``regex``, whose classes are Unicode's); of one that was cut, every token
must have been allowed. Any that is not fails the run.

Then what a grammar costs: how much of the time in which masks are filled the forward pass runs, and the host's time per
step of free requests, with grammars as they are and with ``[select.grammar]`` off, by turns. Where the host itself is
the device, a thread stands for the device in the first part.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import jsonschema
import msgspec
import regex

from llmk.config import load
from llmk.engine.core import EngineCore
from llmk.engine.device.trace import NULL_TRACE, Span, Trace
from llmk.engine.execution.executor import Executor
from llmk.engine.launch import build_core
from llmk.engine.text.grammars import GrammarStarter
from llmk.engine.text.input_processor import InputProcessor
from llmk.engine.text.tokenizer import Tokenizer
from llmk.engine.wire.request import EngineRequest, RequestContext
from llmk.engine.wire.sampling_params import SamplingParams
from llmk.engine.wire.step import Masks, StepPlan, StepResult
from llmk.planning.boot import boot

CHOICES = (
    ["yes", "no"],
    ["yes", "yes, but not now", "no"],
    ["positive", "negative", "neutral"],
    ["größer", "kleiner", "gleich"],
    ["a.b*c", "[x]", "{y}", "\\d+", '"q"'],
    [f"option {number}" for number in range(120)],
)
REGEXES = (
    r"(\+49|0)[1-9]\d{2,9}",
    r"[A-Z]{2}\d{2}( \d{4}){3}",
    r"(yes|no), because [a-z ,]{5,60}\.",
    r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])",
    r"[a-z_][a-z0-9_]{0,15}\([a-z]?(, [a-z]){0,3}\)",
    r"(é|ё|ß){2,8}!?",
    r"#[0-9a-f]{6}(;#[0-9a-f]{6}){0,4}",
    r"(SELECT|select) \w{1,12} FROM \w{1,12}( WHERE \w{1,8} = \d{1,4})?;",
)
PROMPTS = (
    "Write a person, an order and its state as JSON.\n",
    'Rewrite this: {"name": "Ann", "age": 41, "tags": ["a", "b"]}\n',
    "Question: is it so? Answer: ",
    "def main():\n    return ",
)
SCHEMAS = Path(__file__).parent / "grammar_cases" / "schemas.jsonl"
"""Schemas as they are in use, one per line."""
NAMES = ("name", "id", "state", "größe", "a b", "tags", "createdAt", "value_in_eur", "x", "0")
MOST_TOKENS = 240
PENALTY = {"frequency_penalty": 0.3}
"""Without it, small models write spaces and digits as long as they may."""
Grammar = tuple[str, Any]
"""A kind of :class:`llmk.GrammarParams`, and its value."""


def invented(random: Random, depth: int = 3) -> dict[str, Any]:
    """A random schema."""
    kinds = ["string", "pattern", "integer", "number", "boolean", "enum", "const", "null"]
    kind = random.choice(["object", "object", "array", "anyOf", *kinds] if depth < 3 else ["object"])
    kind = random.choice(kinds) if not depth else kind
    low = random.randint(-500, 400)
    match kind:
        case "object":
            names = random.sample(NAMES, random.randint(1, 4))
            properties = {name: invented(random, depth - 1) for name in names}
            required = [name for name in names if random.random() < 0.7]
            return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
        case "array":
            least = random.randint(0, 2)
            bounds = {"minItems": least, "maxItems": least + random.randint(0, 2)}
            return {"type": "array", "items": invented(random, depth - 1), **bounds}
        case "anyOf":
            return {"anyOf": [invented(random, depth - 1) for _ in range(random.randint(2, 3))]}
        case "enum":
            return {"enum": random.sample(["red", "grün", 7, -1.5, None, True, [], {"a": 1}], random.randint(2, 5))}
        case "const":
            return {"const": random.choice(["", "a\tb", 0, {"k": ["v"]}, "a longer text that is written as it is"])}
        case "pattern":
            patterns = (r"^\d{3}$", "^(ab|c){1,5}$", "^[A-Z][a-z]{2,9}$", r"^\d{4}-\d{2}-\d{2}$", "^.{0,6}$")
            return {"type": "string", "pattern": random.choice(patterns)}
        case "string":
            return {"type": "string", "maxLength": random.randint(0, 20)}
        case "integer" | "number" if random.random() < 0.7:
            return {"type": kind, "minimum": low, "maximum": low + random.randint(0, 900)}
    return {"type": kind}


def grammars(num_schemas: int) -> list[Grammar]:
    """Schemas, regexes and choices."""
    schemas = [json.loads(line) for line in SCHEMAS.read_text().splitlines()]
    schemas = [*schemas, *(invented(Random(seed)) for seed in range(num_schemas))][:num_schemas]
    others: list[Grammar] = [*(("regex", pattern) for pattern in REGEXES), *(("choice", texts) for texts in CHOICES)]
    return [*(("json", schema) for schema in schemas), *others]


def problem(grammar: Grammar, text: str) -> str:
    """Why a whole output does not match, as others than the compiler see it; empty where it does."""
    kind, wanted = grammar
    if kind == "regex":
        return "" if regex.fullmatch(wanted, text) else "it doesn't match"
    if kind == "choice":
        return "" if text in wanted else "it is no choice"
    try:
        found = jsonschema.exceptions.best_match(jsonschema.Draft202012Validator(wanted).iter_errors(json.loads(text)))
    except ValueError as error:
        return str(error)
    return found.message if found else ""


@dataclass(slots=True)
class _Step:
    step: int
    issued: Future[Any]
    done: Future[StepResult] | None = None

    def result(self) -> StepResult:
        assert self.done is not None, "it is sampled before its result is wanted"
        return self.done.result()


class InThread(Executor):
    """Runs steps in a thread, in the order in which they are issued, as a device would."""

    asynchronous = "a thread stands for the device"

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._thread = ThreadPoolExecutor(1)
        self._newest: _Step | None = None

    def submit(self, plan: StepPlan) -> _Step:
        copied = msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=StepPlan)
        step = self._newest = _Step(plan.step, self._thread.submit(self._runner.submit, copied))
        if not plan.deferred:
            step.done = self._thread.submit(lambda: step.issued.result().result())
        return step

    def sample(self, masks: Masks) -> None:
        step = self._newest
        assert step is not None
        step.done = self._thread.submit(self._sampled, step, masks)

    def close(self) -> None:
        self._thread.shutdown()
        self._runner.close()

    def _sampled(self, step: _Step, masks: Masks) -> StepResult:
        pending = step.issued.result()
        self._runner.sample(masks)
        result: StepResult = pending.result()
        return result


class Engine:
    """An engine on which requests run to their ends."""

    def __init__(self, options: dict[str, Any], trace: Trace | None = None) -> None:
        """With a ``trace``, its steps run asynchronously to the host."""
        self.boot = boot(load(options, environ={}))
        self.tokenizer = Tokenizer.load(self.boot.checkpoint)
        self.core, info = build_core(self.boot, trace or NULL_TRACE)
        runner = self.core.runner
        if trace is not None and not runner.asynchronous:
            starter = GrammarStarter(self.boot)
            self.core = EngineCore(
                self.core.scheduler, InThread(runner), depth=self.core.depth, grammars=starter, trace=trace
            )
        self._input = InputProcessor(self.tokenizer, info, seed=0)
        self._numbers = 0

    def requests(self, prompt: str, params: SamplingParams) -> list[EngineRequest]:
        """The sequences of a request."""
        self._numbers += 1
        return self._input.sequences(prompt, params, RequestContext(str(self._numbers)))


def generate(engine: Engine, asked: Sequence[Grammar | None]) -> Iterator[tuple[Grammar | None, list[int], str, str]]:
    """The tokens of a request for each of ``asked``, what ended it, and its error."""
    open_ones: dict[str, tuple[Grammar | None, list[int]]] = {}
    for number, grammar in enumerate(asked):
        wanted = None if grammar is None else {grammar[0]: grammar[1]}
        warm = {"temperature": 0.0} if number % 3 == 0 else {"temperature": 1.0, "seed": number, "top_p": 0.95}
        params = SamplingParams(**warm, **PENALTY, max_tokens=MOST_TOKENS, structured_outputs=wanted)
        for request in engine.requests(PROMPTS[number % len(PROMPTS)], params):
            open_ones[request.id] = grammar, []
            engine.core.add(request)
    while engine.core.has_work:
        for output in engine.core.step().outputs:
            grammar, tokens = open_ones[output.id]
            tokens += output.token_ids
            if output.finish_reason is not None:
                del open_ones[output.id]
                yield grammar, tokens, output.finish_reason, output.error
    assert not open_ones


def validate(engine: Engine, asked: Sequence[Grammar | None]) -> tuple[Counter[str], list[str]]:
    """Counts of outputs by kind and end, and what is wrong with those that are invalid."""
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    cut: list[tuple[Grammar, list[int]]] = []
    for grammar, tokens, reason, error in generate(engine, asked):
        kind = grammar[0] if grammar else "free"
        counts[f"{kind}: {reason}"] += 1
        text = engine.tokenizer.decode(tokens, skip_special_tokens=True)
        if grammar is not None and reason == "length":
            cut.append((grammar, tokens))
        elif why := error or (problem(grammar, text) if grammar else ""):
            wrong.append(f"{grammar}: {text!r}: {why}")
    starter = GrammarStarter(engine.boot)
    for grammar, tokens in cut:
        params = SamplingParams(structured_outputs={grammar[0]: grammar[1]})
        (request,) = engine.requests(PROMPTS[0], params)
        request.generated_token_ids = tokens
        starter.add(request)
        wrong += [f"{grammar}: {tokens}: {started.error}" for started in starter.take(60.0) if started.error]
    starter.close()
    return counts, wrong


def overlaps(fills: Sequence[Span], device: Sequence[Span]) -> list[float]:
    """The part of each of ``fills`` in which the device runs the forward pass of the same step."""
    runs = {span.step: span for span in device}
    shared = [(fill, runs[fill.step]) for fill in fills if fill.step in runs]
    return [
        max(0, min(fill.end, run.end) - max(fill.start, run.start)) / (fill.end - fill.start) for fill, run in shared
    ]


def report(trace: Trace, engine: Engine, seconds: float) -> None:
    """Prints what the run took."""
    stats, asynchronous = engine.core.stats, engine.core.runner.asynchronous
    fills = [span for span in trace.host() if span.name == "fill masks"]
    hidden = overlaps(fills, trace.device())
    each, whole = 1e3 * statistics.median(fill.seconds for fill in fills), sum(share >= 0.99 for share in hidden)
    tokens = (
        f"{stats.generated_tokens} tokens in {stats.steps} steps ({stats.generated_tokens / stats.steps:.2f} a step)"
    )
    print(f"{tokens} and {seconds:.1f} s, {stats.preemptions} preemptions")
    print(f"drafts: {sum(stats.drafted)} drafted, {sum(stats.accepted)} accepted")
    print(f"steps in flight: {engine.core.depth} ({asynchronous})")
    print(f"masks: filled in {len(fills)} steps, in {each:.3f} ms (p50)")
    print(f"masks filled while the step's forward pass runs: {whole} of {len(hidden)}", end="")
    print(f", on average for {statistics.mean(hidden):.1%} of the time")


def host_times(core: EngineCore, steps: int) -> Iterator[float]:
    """The host's seconds of each of so many steps."""
    for _ in range(steps):
        step = core.step().step
        if step is not None:
            yield step.host_seconds


def costs(options: dict[str, Any], rounds: int) -> tuple[list[float], list[float]]:
    """The host's median milliseconds per step of 16 free requests in each round, with grammars and without, by
    turns."""
    options = {**options, "model.max_model_len": 10 * rounds + 100}
    engines = [Engine({**options, "select.grammar.use": use}) for use in ("", "none")]
    list(generate(engines[0], [("choice", ["yes", "no"])]))
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=10 * rounds + 20)
    for engine in engines:
        for number in range(16):
            for request in engine.requests(PROMPTS[number % 4], params):
                engine.core.add(request)
        list(host_times(engine.core, 10))
    found: list[list[float]] = [[], []]
    for number in range(rounds):
        for which in (0, 1) if number % 2 else (1, 0):
            found[which].append(1e3 * statistics.median(host_times(engines[which].core, 10)))
    for engine in engines:
        engine.core.close()
    return found[0], found[1]


def main() -> int:
    """Prints counts and times; returns 1 where an output is invalid."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="", help="checkpoint folder; the demo model where it is not given")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--schemas", type=int, default=100)
    parser.add_argument(
        "--outputs", type=int, default=1000, help="constrained ones; there is a free one for every four"
    )
    parser.add_argument("--rounds", type=int, default=40, help="of ten steps each, of the comparison; 0: none")
    parser.add_argument("--trace", type=Path, help="file for the trace of the first part")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="configuration")
    args = parser.parse_args()
    options = {"model.path": args.model, "model.dtype": args.dtype, "platform.threads": args.threads}
    options |= {"model.max_model_len": 512, "cache.memory_gib": 0.25, "scheduler.max_num_seqs": 32}
    options |= {"engine.steps_in_flight": 2, **dict(pair.split("=", 1) for pair in args.set)}
    kinds, asked = grammars(args.schemas), list[Grammar | None]()
    for number in range(args.outputs):
        asked += [kinds[number % len(kinds)], *([None] if number % 4 == 0 else [])]
    trace = Trace()
    engine = Engine(options, trace)
    start = time.perf_counter()
    counts, wrong = validate(engine, asked)
    print("\n".join(f"{name}: {count}" for name, count in sorted(counts.items())))
    print(f"invalid: {len(wrong)} of {args.outputs} outputs of {len(kinds)} grammars")
    print("\n".join(wrong), file=sys.stderr)
    report(trace, engine, time.perf_counter() - start)
    if args.trace:
        trace.write(args.trace)
    engine.core.close()
    if args.rounds:
        there, off = costs(options, args.rounds)
        ratio = statistics.median(one / other for one, other in zip(there, off, strict=True))
        times = f"{statistics.median(there):.3f} ms with grammars, {statistics.median(off):.3f} ms without"
        print(f"host per step without constrained rows: {times} (ratio of rounds, p50: {ratio:.3f})")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

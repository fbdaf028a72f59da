"""``llmk bench serve``."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from llmk.api import ConfigError
from llmk_bench import figures, plots, report, runner
from llmk_bench.experiment import Experiment, write
from llmk_bench.load import Load
from llmk_bench.prompts import KINDS, Prompts
from llmk_bench.sample import Sample
from llmk_bench.server_process import started, wait_for
from llmk_bench.target import CHAT, COMPLETIONS, Target

URL = "http://127.0.0.1:8000"


class Point(msgspec.Struct, frozen=True):
    """One load of a sweep."""

    name: str
    load: Load
    prompts: Prompts


class ServeCommand:
    """``llmk bench serve``."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's options."""
        _add_server(parser.add_argument_group("server"))
        _add_load(parser.add_argument_group("load", "several values of an option make a sweep over all combinations"))
        _add_data(parser.add_argument_group("data"))
        _add_results(parser.add_argument_group("results"))

    def run(self, args: argparse.Namespace) -> int:
        """Measures each server under each load; returns 1 where a request failed."""
        if args.resume and not args.experiment_name:
            raise ConfigError("--resume needs --experiment-name")
        points, targets = points_of(args), figures.parse_targets(args.goodput)
        experiment = None
        if args.experiment_name:
            experiment = Experiment(args.results / args.experiment_name, resume=args.resume)
        fine, results = True, list[dict[str, Any]]()
        for number, command in enumerate(args.serve or [""]):
            prefix = f"server-{number + 1}_" if len(args.serve) > 1 else ""
            for result in _measured(args, command, prefix, points, targets, experiment):
                results.append(result)
                fine = fine and not result["figures"]["failed"]
        if args.output:
            write(args.output, json.dumps(results, indent=1) + "\n")
        if experiment:
            experiment.finish(args.experiment_name)
            print(f"results are in {experiment.folder}", file=sys.stderr)
        return 0 if fine else 1


def _add_server(group: argparse._ArgumentGroup) -> None:
    key = os.environ.get("OPENAI_API_KEY", "")
    group.add_argument("--url", default=URL, help="without /v1 [%(default)s]")
    group.add_argument("--model", default="", help="[the first that the server lists]")
    group.add_argument("--api-key", default=key, metavar="KEY", help="[$OPENAI_API_KEY]")
    group.add_argument("--path", default="", help=f"route of requests [{CHAT}, with token ids {COMPLETIONS}]")
    group.add_argument("--header", action="append", default=[], metavar="NAME:VALUE", help="of every request")
    group.add_argument("--body", default="{}", metavar="JSON", help="more fields of every request")
    group.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="request answers of full length; a field that not every server knows",
    )
    text = "servers to start at --url by their commands, by turns"
    group.add_argument("--serve", nargs="+", default=[], metavar="COMMAND", help=text)
    group.add_argument(
        "--wait", type=float, default=300.0, metavar="SECONDS", help="for a server to start [%(default)g]"
    )


def _add_load(group: argparse._ArgumentGroup) -> None:
    rate = "conversations that arrive a second; inf: all at once [inf]"
    group.add_argument("--rate", type=_positive, nargs="+", default=[math.inf], metavar="N", help=rate)
    group.add_argument(
        "--burstiness", type=_positive, default=1.0, metavar="SHAPE", help="1: Poisson; less: bursts; more: even [1]"
    )
    at_once = "most conversations at a time; 0: any number [0]"
    group.add_argument("--concurrency", type=_whole, nargs="+", default=[0], metavar="N", help=at_once)
    group.add_argument("--requests", type=_count, default=100, metavar="N", help="conversations [%(default)s]")
    group.add_argument("--warm-up", type=_whole, default=4, metavar="N", help="requests before, not measured [4]")
    text = "seconds between these and the load [%(default)g]"
    group.add_argument("--settle", type=float, default=0.5, metavar="SECONDS", help=text)
    group.add_argument("--processes", type=_count, default=1, metavar="N", help="clients [%(default)s]")
    group.add_argument("--seed", type=int, default=1, help="of what is drawn (%(default)s)")


def _add_data(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--data", choices=KINDS, default="random", help="[%(default)s]")
    group.add_argument("--file", default="", help="of --data sharegpt")
    text = "tokens of a prompt, or of what follows a shared prefix [512]"
    group.add_argument("--prompt-tokens", type=_count, nargs="+", default=[512], metavar="N", help=text)
    group.add_argument("--output-tokens", type=_count, nargs="+", default=[128], metavar="N", help="of an answer [128]")
    group.add_argument("--spread", type=_fraction, default=0.0, help="lengths differ by up to this fraction [0]")
    group.add_argument("--turns", type=_count, default=1, metavar="N", help="of a conversation, at most [1]")
    group.add_argument("--think", type=float, default=0.0, metavar="SECONDS", help="mean time between turns [0]")
    group.add_argument("--prefixes", type=_count, default=4, metavar="N", help="of --data shared-prefix [4]")
    group.add_argument("--prefix-tokens", type=_count, default=1024, metavar="N", help="of each [1024]")
    group.add_argument("--tokenizer", default="", metavar="FILE", help="makes lengths of text exact (tokenizer.json)")
    text = "prompts are lists of token ids below this instead of text"
    group.add_argument("--vocabulary", type=_whole, default=0, metavar="N", help=text)
    group.add_argument("--alongside", type=_whole, default=0, metavar="N", help="tokens of one long prompt among them")


def _add_results(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--goodput", nargs="+", default=[], metavar="WHAT:MS", help="ttft:500 tpot:50 e2e:5000")
    group.add_argument("--output", type=Path, metavar="FILE", help="all results, as JSON")
    group.add_argument("--timeline", type=Path, metavar="FILE", help="plot of the last load's requests (SVG)")
    group.add_argument("--experiment-name", default="", metavar="NAME", help="keep each load's result in a folder")
    group.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="of experiments [results]")
    group.add_argument("--resume", action="store_true", help="skip what the experiment has already")


def points_of(args: argparse.Namespace) -> list[Point]:
    """All loads of the sweep, each with a seed and a name of its own. Raises ConfigError for what doesn't go
    together."""
    if args.vocabulary and args.turns > 1:
        raise ConfigError("--vocabulary and --turns don't go together: an answer is text, not token ids")
    if args.vocabulary and args.path == CHAT:
        raise ConfigError("--vocabulary needs --path /v1/completions: chats have no token ids")
    if args.data == "sharegpt" and max(len(args.prompt_tokens), len(args.output_tokens)) > 1:
        raise ConfigError(
            "--data sharegpt has lengths of its own: --prompt-tokens and --output-tokens make no sweep of it"
        )
    combinations = itertools.product(args.rate, args.concurrency, args.prompt_tokens, args.output_tokens)
    points = []
    for number, (rate, concurrency, prompt, new) in enumerate(combinations):
        seed = args.seed + number
        same = {"requests": args.requests, "burstiness": args.burstiness, "think": args.think}
        load = Load(rate=rate, concurrency=concurrency, seed=seed, **same)
        names = ("spread", "turns", "prefixes", "prefix_tokens", "vocabulary", "tokenizer", "file", "alongside")
        given = {name: getattr(args, name) for name in names}
        lengths = Path(args.file).stem if args.data == "sharegpt" else f"in-{prompt}_out-{new}"
        name = f"rate-{rate:g}_concurrency-{concurrency}_{lengths}"
        points.append(Point(name, load, Prompts(kind=args.data, prompt=prompt, new=new, seed=seed, **given)))
    if len({point.name for point in points}) < len(points):
        raise ConfigError("an option of the sweep has the same value twice")
    return points


def _measured(
    args: argparse.Namespace,
    command: str,
    prefix: str,
    points: list[Point],
    targets: dict[str, float],
    experiment: Experiment | None,
) -> Iterator[dict[str, Any]]:
    """The result of each point on one server, which is started only if something is left to measure."""
    with contextlib.ExitStack() as stack:
        target: Target | None = None
        more: dict[str, Any] = {}
        for point in points:
            name = prefix + point.name
            settings = {**_settings(point, args, command), "targets_ms": targets}
            known = experiment.result(name, settings) if experiment else None
            if known is not None:
                print(f"{name}: measured before", file=sys.stderr)
                yield known
                continue
            if target is None:
                target, more = _open(args, command, stack)
                _warm_up(target, point, args)
            outcome = runner.run(target, point.load, _conversations(point), args.processes)
            found = figures.summarize(outcome.samples, targets)
            result = {"name": name, "settings": settings, **more, "figures": found, "busy": outcome.busy}
            print(report.render(name, found, outcome.busy, runner.BUSY), flush=True)
            _show_errors(outcome.samples)
            drawn = plots.timeline(outcome.samples, name)
            if args.timeline:
                write(args.timeline, drawn)
            if experiment:
                experiment.keep(name, result | {"samples": [_row(sample) for sample in outcome.samples]}, drawn)
            yield result


def _open(args: argparse.Namespace, command: str, stack: contextlib.ExitStack) -> tuple[Target, dict[str, Any]]:
    """The server, started if there is a command, and what to record of it."""
    pairs = [header.partition(":") for header in args.header]
    headers = {name.strip(): value.strip() for name, _, value in pairs}
    try:
        body = json.loads(args.body)
    except ValueError as error:
        raise ConfigError(f"--body is not JSON: {error}") from error
    path = args.path or (COMPLETIONS if args.vocabulary else CHAT)
    given = {"url": args.url.rstrip("/").removesuffix("/v1"), "api_key": args.api_key, "headers": headers, "body": body}
    target = Target(**given, path=path, model=args.model, ignore_eos=args.ignore_eos)
    at = time.monotonic()
    process = stack.enter_context(started(command)) if command else None
    model = args.model
    if process or not model:
        model = wait_for(target.url, args.wait if process else 5.0, process, target.all_headers)
    more = {"model": args.model or model}
    if process:
        more |= {"server": Path(shlex.split(command)[0]).name, "start_s": round(time.monotonic() - at, 2)}
    return msgspec.structs.replace(target, model=args.model or model), more


def _warm_up(target: Target, point: Point, args: argparse.Namespace) -> None:
    """Sends some requests, with prompts of their own."""
    if not args.warm_up:
        return
    prompts = msgspec.structs.replace(point.prompts, seed=args.seed - 1, alongside=0)
    load = Load(requests=args.warm_up)
    _show_errors(runner.run(target, load, prompts.conversations(args.warm_up)).samples)
    time.sleep(args.settle)


def _conversations(point: Point) -> list[Any]:
    return point.prompts.conversations(point.load.requests)


def _settings(point: Point, args: argparse.Namespace, command: str) -> dict[str, Any]:
    """All that a result depends on, as JSON has it, which has no infinity."""
    load = msgspec.to_builtins(point.load) | {"rate": f"{point.load.rate:g}"}
    same = {name: getattr(args, name) for name in ("url", "path", "body", "ignore_eos", "processes")}
    return {**same, "command": command, "load": load, "prompts": msgspec.to_builtins(point.prompts)}


def _row(sample: Sample) -> dict[str, Any]:
    """A sample for a file: without the time of every event."""
    row: dict[str, Any] = msgspec.to_builtins(sample)
    times = row.pop("arrivals")
    ends = {"first": times[0], "last": times[-1], "events": len(times)} if times else {}
    return {name: round(value, 5) if isinstance(value, float) else value for name, value in (row | ends).items()}


def _show_errors(samples: list[Sample]) -> None:
    errors = [sample.error for sample in samples if sample.error]
    for error in list(dict.fromkeys(errors))[:5]:
        print(f"  failed: {error}", file=sys.stderr, flush=True)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def _positive(text: str) -> float:
    if not (value := _number(text)) > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def _fraction(text: str) -> float:
    if not 0 <= (value := _number(text)) <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def _count(text: str) -> int:
    if not (value := _whole(text)):
        raise argparse.ArgumentTypeError("it must be 1 or more")
    return value

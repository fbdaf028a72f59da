"""Checks llmk on a machine with an NVIDIA GPU and no network: tests, tokens against the CPU's, timings.

    make carry                        # where there is a network: wheels of llmk, and of what it needs, into .carry/
    python3 tools/gpu_check.py        # where the GPU is: in a copy of this folder, .carry/ included

The Python there needs torch with CUDA, transformers and pytest; wheels are installed into a folder of their own beside
it. Every step has a time limit and a result, and the next one runs whatever came of it; 1 where any failed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import gettempdir
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LLMK = (sys.executable, "-P", "-m", "llmk")
PLATFORMS = ("cpu", "cuda")

NEAR = 0.02
"""How far apart, in nats, two tokens may be for which of them is likelier to depend on rounding; log-probabilities of
the same token may differ by as much."""

NEW_TOKENS = 48
QUESTIONS = ("What is llmk?", "What is the capital of France?", "Twelve plus thirty is", "Hello! Who are you?")

Answer = dict[str, Any]


class Failed(Exception):
    """A check that does not hold; the message says which."""


def install(args: argparse.Namespace) -> None:
    """Installs all wheels into the folder, without what they depend on."""
    wheels = sorted(str(wheel) for wheel in args.wheels.glob("*.whl"))
    if not wheels:
        raise Failed(f"{args.wheels} has no wheels: run `make carry` where there is a network, and bring the folder")
    options = ("--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--upgrade", "--target", str(args.site))
    _run([sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", *options, *wheels])
    print(f"{len(wheels)} wheels in {args.site}")


def report(args: argparse.Namespace) -> None:
    """What is here, and what would be chosen for the demo model on it."""
    _run(["nvidia-smi", "-L"])
    _run([*LLMK, "doctor", "--platform.use", "cuda"])
    _run([*LLMK, "explain", "--platform.use", "cuda"])


def tests(args: argparse.Namespace) -> None:
    """The tests that skip what needs a GPU elsewhere."""
    _run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *args.tests])


def tokens(args: argparse.Namespace) -> None:
    """Serves models in float32 on the CPU and on the GPU, and compares what they answer."""
    tiny = args.site.with_name("llmk-tiny")
    write = "from pathlib import Path; from llmk_testing.checkpoints import write_checkpoint"
    _run([sys.executable, "-c", f"{write}; write_checkpoint(Path({str(tiny)!r}), 'qwen3')"])
    rng = random.Random(0)
    numbers = [[rng.randrange(3, 380) for _ in range(length)] for length in (1, 7, 33, 150)]
    compare("tiny", (str(tiny),), numbers)
    compare("demo", (), list(QUESTIONS))


def compare(name: str, model: Sequence[str], prompts: list[Any]) -> None:
    """Compares one model's answers to a batch of prompts token by token, up to where two tokens are as likely."""
    with ExitStack() as stack:
        started = [stack.enter_context(server(platform, model)) for platform in PLATFORMS]
        urls = [wait_for(process, platform) for process, platform in zip(started, PLATFORMS, strict=True)]
        cpu, gpu = (ask(url, prompts) for url in urls)
    equal, apart, ties = 0, 0.0, 0
    for number, (expected, found) in enumerate(zip(cpu, gpu, strict=True)):
        for place, token in enumerate(expected["tokens"]):
            here, likely = found["tokens"][place], expected["top_logprobs"][place]
            if here != token:
                gap = likely[token] - likely.get(here, float("-inf"))
                if gap > NEAR:
                    raise Failed(f"{name}, prompt {number}: token {place} is {here!r} on the GPU, {token!r} on the CPU")
                ties += 1
                break
            equal += 1
            apart = max(apart, abs(found["token_logprobs"][place] - expected["token_logprobs"][place]))
    if apart > NEAR:
        raise Failed(f"{name}: log-probabilities differ by {apart:.2g} for equal tokens")
    print(f"{name}: {equal} tokens are the CPU's, {ties} answers part at a tie; log-probabilities within {apart:.2g}")


def timings(args: argparse.Namespace) -> None:
    """Start-up, time to the first token, and decode steps of one and of 32 requests, on made-up weights."""
    command = [sys.executable, str(ROOT / "benchmarks/peers/peer_bench.py"), "--engine", "llmk", "--model", args.model]
    _run([*command, "--workload", "d1,d32,p2048", "--reps", "1", "--engine-args", '{"platform.use": "cuda"}'])


@contextmanager
def server(platform: str, model: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """``llmk serve`` on a free port."""
    options = ("--platform.use", platform, "--model.dtype", "float32", "--port", "0", "--server.log-level", "warning")
    process = subprocess.Popen([*LLMK, "serve", *model, *options], stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


def wait_for(process: subprocess.Popen[str], platform: str) -> str:
    """The server's address, once it says so."""
    start = time.perf_counter()
    for line in process.stdout or ():
        if line.startswith("serving "):
            print(f"{platform}: {line.strip()} after {time.perf_counter() - start:.1f} s more")
            return line.split()[-1]
    raise Failed(f"the server on {platform} stopped with exit code {process.wait()}; its own words stand above")


def ask(url: str, prompts: list[Any]) -> list[Answer]:
    """Tokens, their log-probabilities and the likeliest ones beside them, for every prompt of one request."""
    body = {"prompt": prompts, "temperature": 0, "max_tokens": NEW_TOKENS, "ignore_eos": True, "logprobs": 5}
    data, headers = json.dumps(body).encode(), {"content-type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/completions", data, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:  # nosec B310 # of the server that was started above
        return [choice["logprobs"] for choice in json.load(answer)["choices"]]


def _run(command: Sequence[str]) -> None:
    print(f"$ {' '.join(command)}"[:160], flush=True)
    try:
        code = subprocess.run(command, cwd=ROOT).returncode
    except OSError as error:
        raise Failed(str(error)) from error
    if code:
        raise Failed(f"exit code {code}")


STEPS: dict[str, tuple[Callable[[argparse.Namespace], None], float]] = {
    "install": (install, 40),
    "report": (report, 40),
    "tests": (tests, 110),
    "tokens": (tokens, 100),
    "timings": (timings, 100),
}
"""What is done, in order, and how many seconds each may take."""


def run_step(name: str, arguments: Sequence[str], limit: float, environment: dict[str, str]) -> str:
    """Runs one step in a process group of its own, which is ended with it; returns ``"ok"`` or what went wrong."""
    command = [sys.executable, __file__, *arguments, "--step", name]
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        code = process.wait(limit)
    except subprocess.TimeoutExpired:
        return f"not done within {limit:.0f} s"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return "failed" if code else "ok"


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", type=Path, default=ROOT / ".carry", help="folder of wheels to install")
    parser.add_argument("--site", type=Path, default=Path(gettempdir()) / "llmk-site", help="where to install them")
    parser.add_argument("--tests", nargs="+", default=["backends-cuda/tests"], help="what pytest runs")
    parser.add_argument("--model", default="qwen3-0.6b", help="shape or checkpoint folder for timings")
    parser.add_argument("--seconds", type=float, default=230.0, help="for all steps together")
    parser.add_argument("--only", nargs="+", choices=STEPS, default=list(STEPS), help="steps to run")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Runs the steps and prints what came of each; 1 where any failed."""
    args = parse(arguments)
    if args.step:
        try:
            STEPS[args.step][0](args)
        except Failed as error:
            print(f"{args.step}: {error}", file=sys.stderr)
            return 1
        return 0
    end = time.monotonic() + args.seconds
    path = os.pathsep.join(filter(None, (str(args.site), os.environ.get("PYTHONPATH", ""))))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
    results = []
    for name in args.only:
        print(f"\n== {name}", flush=True)
        start = time.monotonic()
        result = run_step(name, arguments, max(1.0, min(STEPS[name][1], end - start)), environment)
        results.append((name, result, time.monotonic() - start))
    print("\n== result")
    print("\n".join(f"{name:8} {result} ({seconds:.0f} s)" for name, result, seconds in results))
    return int(any(result != "ok" for _, result, _ in results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

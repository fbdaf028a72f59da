"""What users of a server feel, over HTTP: times to the first token and between tokens, with requests that arrive one
by one.

    llmk serve /tmp/models/qwen3-8b &
    python benchmarks/serving.py --load 4 12 24                     # requests a second, Poisson arrivals
    python benchmarks/serving.py --load 384x 1024x                  # so many at once
    python benchmarks/serving.py --load 24 --alongside 100000          # and one long prompt among them
    python benchmarks/serving.py --serve 'llmk serve DIR --port 8000' 'vllm serve DIR --port 8000' --out results.jsonl

Any server that has OpenAI's ``/v1/completions`` with lists of token ids, ``ignore_eos`` and streams can be measured.
``--serve`` starts servers by turns, each for all loads. Requests are greedy, run to their full length, and have prompts
of random token ids, new ones for each load, so that no prefix cache helps. Clients are processes of their own and send
a request when it is due, whatever became of those before it; times count from then. Each load is a line of JSON;
``tpot`` is the time per token after the first, ``gap`` any time between two events of a stream. A request that fails,
or that has another number of tokens than were wanted, fails the run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import multiprocessing
import os
import shlex
import signal
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

PERCENTILES = (50, 90, 99)
CLIENTS = 4
LEAST_ID = 100
"""Below it, vocabularies have their special tokens, or none of any use."""


@dataclass(frozen=True, slots=True)
class Load:
    """``rate`` requests a second, or all at once where it is infinite."""

    rate: float
    requests: int
    prompt: int
    new: int
    seed: int
    beside: int = 0
    """Tokens of one more prompt, which is sent after a tenth of the requests; 0: none."""

    @property
    def name(self) -> str:
        """As ``--load`` has it."""
        return f"{self.requests}x" if math.isinf(self.rate) else f"{self.rate:g}"

    def jobs(self, vocabulary: int) -> list[Job]:
        """The requests, by when they are due."""
        random, due, jobs = Random(self.seed), 0.0, list[Job]()
        for number in range(self.requests):
            if self.beside and number == self.requests // 10:
                jobs.append(Job(due, _ids(random, self.beside, vocabulary), self.new, long=True))
            jobs.append(Job(due, _ids(random, self.prompt, vocabulary), self.new))
            due += 0.0 if math.isinf(self.rate) else random.expovariate(self.rate)
        return jobs


@dataclass(frozen=True, slots=True)
class Job:
    """One request, ``due`` seconds after the start."""

    due: float
    prompt: list[int]
    new: int
    long: bool = False


@dataclass(slots=True)
class Answer:
    """Seconds after the start at which a request was due, and at which each event with a choice came."""

    due: float
    long: bool = False
    events: list[float] = field(default_factory=list)
    tokens: int = 0
    error: str = ""


def _ids(random: Random, count: int, vocabulary: int) -> list[int]:
    return [random.randrange(LEAST_ID, vocabulary) for _ in range(count)]


async def send(host: str, port: int, model: str, job: Job, start: float) -> Answer:
    """Sends one request and reads its stream."""
    answer = Answer(job.due, job.long)
    body = {"model": model, "prompt": job.prompt, "max_tokens": job.new, "temperature": 0, "ignore_eos": True}
    data = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
    await asyncio.sleep(start + job.due - time.monotonic())
    try:
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(f"{head}Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data)
        status = await reader.readline()
        if b" 200 " not in status:
            answer.error = f"{status.decode().strip()}: {(await reader.read())[-300:].decode(errors='replace')}"
        else:
            await _read(reader, answer, start)
        writer.close()
    except OSError as error:
        answer.error = repr(error)
    if not answer.error and answer.tokens != job.new:
        answer.error = f"{answer.tokens} tokens instead of {job.new}"
    return answer


async def _read(reader: asyncio.StreamReader, answer: Answer, start: float) -> None:
    """Reads events; what frames chunks stands on lines of its own, which begin otherwise."""
    async for line in reader:
        if not line.startswith(b"data: {"):
            continue
        if b'"choices":[]' in line.replace(b" ", b""):
            answer.tokens = json.loads(line[6:])["usage"]["completion_tokens"]
        elif b'"error"' in line[:20]:
            answer.error = line.decode()
        else:
            answer.events.append(time.monotonic() - start)


def client(address: tuple[str, int], model: str, jobs: Sequence[Job], start: float, answers: Any) -> None:
    """Sends some of a load's requests; one process."""

    async def every() -> list[Answer]:
        return await asyncio.gather(*(send(*address, model, job, start) for job in jobs))

    answers.put(asyncio.run(every()))


def run(url: str, model: str, load: Load, vocabulary: int) -> list[Answer]:
    """Sends a load from several processes; returns its answers."""
    parts = urlsplit(url)
    address = (parts.hostname or "127.0.0.1", parts.port or 80)
    context, jobs = multiprocessing.get_context("spawn"), load.jobs(vocabulary)
    answers, start = context.Queue(), time.monotonic() + 2.0 + 2e-3 * len(jobs)
    shares = [jobs[first::CLIENTS] for first in range(CLIENTS)]
    clients = [context.Process(target=client, args=(address, model, share, start, answers)) for share in shares]
    for process in clients:
        process.start()
    found = [answer for _ in clients for answer in answers.get()]
    for process in clients:
        process.join()
    return found


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """In milliseconds."""
    ordered = sorted(values)
    picked = {f"p{share}": ordered[min(len(ordered) - 1, len(ordered) * share // 100)] for share in PERCENTILES}
    return {name: round(1e3 * value, 2) for name, value in picked.items()}


def summarize(load: Load, answers: Sequence[Answer]) -> dict[str, Any]:
    """A load's figures."""
    whole = [answer for answer in answers if not answer.error]
    short = [answer for answer in whole if not answer.long]
    line: dict[str, Any] = {"load": load.name, **asdict(load), "failed": len(answers) - len(whole)}
    del line["rate"]  # JSON has no infinity
    if not short:
        return line
    seconds = max(answer.events[-1] for answer in whole) - min(answer.due for answer in whole)
    line |= {"seconds": round(seconds, 3), "tok_s": round(sum(answer.tokens for answer in whole) / seconds, 1)}
    line["ttft_ms"] = percentiles([answer.events[0] - answer.due for answer in short])
    if load.new > 1:
        spans = [(answer.events[-1] - answer.events[0]) / (answer.tokens - 1) for answer in short]
        gaps = [after - before for one in short for before, after in zip(one.events, one.events[1:], strict=False)]
        line |= {"tpot_ms": percentiles(spans), "gap_ms": percentiles(gaps)}
    line["events_per_request"] = round(statistics.mean(len(answer.events) for answer in short), 1)
    line["long_ttft_ms"] = [round(1e3 * (answer.events[0] - answer.due), 1) for answer in whole if answer.long]
    return line


def wait_for(url: str, seconds: float, process: subprocess.Popen[bytes] | None = None) -> str:
    """The name of the model that a server serves, once it does."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if process is not None and process.poll() is not None:
            raise SystemExit(f"the server ended with {process.returncode}")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                pass
            with urllib.request.urlopen(f"{url}/v1/models", timeout=5) as answer:
                name: str = json.load(answer)["data"][0]["id"]
                return name
        except (OSError, urllib.error.URLError):
            time.sleep(0.1)
    raise SystemExit(f"no server answers at {url}")


@contextmanager
def server(command: str, url: str, seconds: float) -> Iterator[tuple[str, float]]:
    """Runs a server; yields its model's name, and the seconds that it took to answer."""
    start = time.monotonic()
    process = subprocess.Popen(shlex.split(command), stdout=sys.stderr, start_new_session=True)
    try:
        yield wait_for(url, seconds, process), time.monotonic() - start
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


def loads_of(args: argparse.Namespace) -> list[Load]:
    """The loads that the command line names."""
    made = []
    for number, text in enumerate(args.load):
        at_once = text.endswith("x")
        rate, requests = (math.inf, int(text[:-1])) if at_once else (float(text), args.requests)
        made.append(Load(rate, requests, args.prompt, args.new, args.seed + number, args.alongside))
    return made


def measure(url: str, model: str, args: argparse.Namespace, more: dict[str, Any]) -> bool:
    """Runs all loads against one server; returns whether all requests ended as they should."""
    fine = True
    run(url, model, Load(math.inf, args.warm_up, args.prompt, args.new, args.seed - 1), args.vocabulary)
    time.sleep(args.settle)
    for load in loads_of(args):
        answers = run(url, model, load, args.vocabulary)
        line = {**more, "model": Path(model).name, **summarize(load, answers)}
        print(json.dumps(line), flush=True)
        if args.out:
            with args.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
        errors = [answer.error for answer in answers if answer.error]
        print("\n".join(errors[:5]), file=sys.stderr, flush=True) if errors else None
        fine = fine and not errors
    return fine


def main() -> int:
    """Prints a line per load and server; returns 1 where a request failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--serve", nargs="*", default=[], metavar="COMMAND", help="servers to start, at --url")
    parser.add_argument("--load", nargs="+", default=["4", "12", "24"], help="requests a second, or 384x: at once")
    parser.add_argument("--requests", type=int, default=400, help="of a load that has a rate")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of a prompt")
    parser.add_argument("--new", type=int, default=128, help="tokens of an answer")
    parser.add_argument("--alongside", type=int, default=0, help="tokens of one long prompt among the others")
    parser.add_argument("--vocabulary", type=int, default=100_000, help="ids of prompts are below it")
    parser.add_argument("--warm-up", type=int, default=16, help="requests before the first load")
    parser.add_argument("--settle", type=float, default=10.0, help="seconds between these and the first load")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--wait", type=float, default=300.0, help="seconds for a server to start")
    parser.add_argument("--out", type=Path, help="file that lines are added to")
    args = parser.parse_args()
    if not args.serve:
        return 0 if measure(args.url, wait_for(args.url, 10), args, {}) else 1
    fine = True
    for command in args.serve:
        with server(command, args.url, args.wait) as (model, seconds):
            more = {"server": Path(shlex.split(command)[0]).name, "command": command, "start_s": round(seconds, 2)}
            fine = measure(args.url, model, args, more) and fine
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())

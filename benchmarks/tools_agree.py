"""Whether ``llmk bench serve`` reports what happened, and what guidellm reports of the same load.

    python benchmarks/tools_agree.py --url http://127.0.0.1:8000 --model NAME --tokenizer DIR

Both tools load a server by turns, through a tap that passes bytes on and notes when. A line of JSON for each load has,
for first token, time per token, whole answer and tokens a second, what each tool reports over what the tap saw of the
same requests, as the median of the rounds. So the speed of the machine, which changes between rounds, is no part of the
comparison. ``--plain``: for servers that refuse ``ignore_eos``; their model must then end no answer early.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

FIGURES = ("ttft_ms", "tpot_ms", "e2e_ms", "output_tokens_per_s")
ROUTE = "/v1/completions"
USAGE = {"include_usage": True, "continuous_usage_stats": True}
"""What guidellm requests, so that events are of one size."""
READ = 1 << 16


@dataclass
class Seen:
    """What passed of one request: when it began, when each event with text left, and tokens."""

    start: float
    events: list[float] = field(default_factory=list)
    tokens: int = 0
    rest: bytes = b""

    def feed(self, data: bytes, now: float) -> None:
        """Takes in what the server sent."""
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data: {"):
                chunk = json.loads(line[6:])
                if any(choice.get("text") for choice in chunk.get("choices", ())):
                    self.events.append(now)
                self.tokens = (chunk.get("usage") or {}).get("completion_tokens") or self.tokens


class Tap(threading.Thread):
    """Passes bytes on between clients and the server at ``url``."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._server = urlsplit(url)
        self._ready = threading.Event()
        self.requests: list[Seen] = []
        self.url = ""

    def run(self) -> None:
        asyncio.run(self._serve())

    def wait(self) -> str:
        """Its address, once it listens."""
        self._ready.wait()
        return self.url

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        await server.serve_forever()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection(self._server.hostname, self._server.port)
        mine: list[Seen] = []

        async def requests() -> None:
            while data := await reader.read(READ):
                if data.startswith(b"POST "):
                    mine.append(Seen(time.perf_counter()))
                    self.requests.append(mine[-1])
                forth.write(data)
            forth.close()

        async def answers() -> None:
            while data := await back.read(READ):
                now = time.perf_counter()
                writer.write(data)
                if mine:
                    mine[-1].feed(data, now)
            writer.close()

        await asyncio.gather(requests(), answers(), return_exceptions=True)


def wire(requests: list[Seen]) -> dict[str, float]:
    """The figures of what the tap saw."""
    seconds = max(one.events[-1] for one in requests) - min(one.start for one in requests)
    tokens = [one.tokens or len(one.events) for one in requests]
    each = list(zip(requests, tokens, strict=True))
    return {
        "ttft_ms": 1e3 * statistics.median(one.events[0] - one.start for one in requests),
        "tpot_ms": 1e3 * statistics.median((one.events[-1] - one.events[0]) / (n - 1) for one, n in each),
        "e2e_ms": 1e3 * statistics.median(one.events[-1] - one.start for one in requests),
        "output_tokens_per_s": sum(tokens) / seconds,
    }


def llmk(url: str, args: argparse.Namespace, concurrency: int, seed: int, file: Path) -> dict[str, float]:
    """The medians that ``llmk bench serve`` reports."""
    body: dict[str, Any] = {"temperature": 1.0} if args.plain else {"temperature": 1.0, "stream_options": USAGE}
    command = [sys.executable, "-m", "llmk", "bench", "serve", "--url", url, "--model", args.model, "--path", ROUTE]
    command += ["--requests", str(args.requests), "--concurrency", str(concurrency), "--warm-up", "0"]
    command += ["--prompt-tokens", str(args.prompt_tokens), "--output-tokens", str(args.output_tokens)]
    command += ["--tokenizer", args.tokenizer, "--seed", str(seed), "--body", json.dumps(body), "--output", str(file)]
    subprocess.run([*command, *(["--no-ignore-eos"] if args.plain else [])], check=True, stdout=subprocess.DEVNULL)
    found = json.loads(file.read_text())[0]["figures"]
    return {name: found[name]["p50"] if name.endswith("_ms") else found[name] for name in FIGURES}


def guidellm(url: str, args: argparse.Namespace, concurrency: int, seed: int, file: Path) -> dict[str, float]:
    """The medians that guidellm reports."""
    backend = f"kind=openai_http,target={url},model={args.model},request_format={ROUTE}"
    data = f"kind=synthetic_text,prompt_tokens={args.prompt_tokens}"
    if args.plain:  # with a length of the data, it sends ignore_eos
        backend += f",max_tokens={args.output_tokens}"
    else:
        data += f",output_tokens={args.output_tokens}"
    command = [args.guidellm, "run", "--disable-console", "--backend", backend, "--data", data]
    command += ["--profile", f"kind=concurrent,streams={concurrency}"]
    command += ["--constraint", f"kind=max_requests,count={args.requests}"]
    command += ["--tokenizer", f"kind=huggingface_auto,model={args.tokenizer}", "--output", f"kind=json,path={file}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    metrics = json.loads(file.read_text())["benchmarks"][0]["metrics"]
    return {
        "ttft_ms": metrics["time_to_first_token_ms"]["successful"]["median"],
        "tpot_ms": metrics["inter_token_latency_ms"]["successful"]["median"],
        "e2e_ms": 1e3 * metrics["request_latency"]["successful"]["median"],
        "output_tokens_per_s": metrics["output_tokens_per_second"]["successful"]["mean"],
    }


def main() -> None:
    """Measures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokenizer", required=True, help="folder with the tokenizer")
    parser.add_argument("--guidellm", default="guidellm", help="its command, in an environment of its own")
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--plain", action="store_true")
    args = parser.parse_args()
    tap = Tap(args.url)
    tap.start()
    url = tap.wait()
    with tempfile.TemporaryDirectory() as folder:
        for concurrency in args.concurrency:
            measured: dict[str, list[tuple[dict[str, float], dict[str, float]]]] = {"llmk": [], "guidellm": []}
            for number in range(args.rounds):
                for tool in (llmk, guidellm) if number % 2 == 0 else (guidellm, llmk):
                    tap.requests.clear()
                    reported = tool(url, args, concurrency, number + 1, Path(folder, "result.json"))
                    measured[tool.__name__].append((reported, wire(tap.requests[-args.requests :])))
            print(json.dumps({"concurrency": concurrency, **summary(measured)}), flush=True)


def summary(measured: dict[str, list[tuple[dict[str, float], dict[str, float]]]]) -> dict[str, Any]:
    """By figure and tool: what it reports, what the tap saw, and the one over the other, as medians of the rounds."""
    found: dict[str, Any] = {}
    for name in FIGURES:
        found[name] = {}
        for tool, rounds in measured.items():
            ratios = [reported[name] / seen[name] for reported, seen in rounds]
            found[name][tool] = {
                "reported": round(statistics.median(reported[name] for reported, _ in rounds), 2),
                "seen": round(statistics.median(seen[name] for _, seen in rounds), 2),
                "ratio": round(statistics.median(ratios), 4),
                "ratios": [round(ratio, 4) for ratio in ratios],
            }
    return found


if __name__ == "__main__":
    main()

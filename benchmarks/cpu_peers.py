"""llmk, llama.cpp and vLLM on a CPU, by turns in one run: decoding, prompts, and start.

    python benchmarks/peers/make_model.py --shape qwen3-0.6b --out m
    python benchmarks/cpu_peers.py --threads 2 --rounds 3 \\
        --engine llmk=m --engine llmk-q4=m-q4_0.gguf --engine llama.cpp=m-bf16.gguf@PYTHON

An engine is ``NAME=MODEL[,OPTION=VALUE...][@PYTHON]``: what its name starts with says which it is, options are its
own, and ``PYTHON`` is the interpreter that has it, where that is not this one. Each runs in a process of its own and
computes only when it is its turn, so that what a noisy machine does to one it does to all. Loads are
``REQUESTSxPROMPT+NEW``, all requests at once, greedy, with prompts of random tokens that no cache knows. A line of JSON
for each engine and load has the medians over the rounds: seconds to the first token, milliseconds per step of those
after it, and the spread of these; the last line is the bandwidth of a read on as many threads.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

LOADS = ("1x128+33", "8x128+17", "1x1024+1")
IDS = range(1000, 100_000)


def clock() -> float:
    """Seconds on the clock, or of this process on processors where ``PROCESSOR_TIME`` is set."""
    return time.process_time() if os.environ.get("PROCESSOR_TIME") else time.perf_counter()


class Load(NamedTuple):
    """So many requests with prompts of so many tokens, and ``new`` tokens for each."""

    requests: int
    prompt: int
    new: int

    @classmethod
    def of(cls, text: str) -> Load:
        """As the command line has it."""
        requests, _, rest = text.partition("x")
        prompt, _, new = rest.partition("+")
        return cls(int(requests), int(prompt), int(new))


Run = Callable[[list[list[int]], int], list[float]]
"""Answers prompts with so many tokens each; returns when each step that gave tokens ended, in seconds from its start,
from the one on that gave all requests their first."""


def start_llmk(model: str, options: dict[str, str], threads: int) -> Run:
    """The engine in this process."""
    from llmk.config import load
    from llmk.engine.launch import build_core
    from llmk.engine.wire.request import EngineRequest
    from llmk.engine.wire.sampling_params import SamplingParams
    from llmk.planning.boot import boot

    given = {"model.path": model, "platform.threads": threads, "model.max_model_len": 8704} | options
    core, _ = build_core(boot(load(given, environ={})))
    ids = iter(range(1 << 30))

    def run(prompts: list[list[int]], new: int) -> list[float]:
        params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True)
        for prompt in prompts:
            core.add(EngineRequest(id=str(next(ids)), prompt_token_ids=prompt, params=params, seed=0))
        began, tokens, times = clock(), 0, list[float]()
        while core.has_work:
            got = sum(len(output.token_ids) for output in core.step().outputs)
            tokens += got
            if got and tokens >= len(prompts):
                times.append(clock() - began)
        return times

    return run


def start_llama(model: str, options: dict[str, str], threads: int) -> Run:
    """llama-cpp-python's low-level functions: requests are sequences of one batch."""
    import llama_cpp as lib
    import numpy as np

    lib.llama_backend_init()
    params = lib.llama_model_default_params()
    # Its buffers for AMX end in an illegal instruction on some virtual machines.
    params.use_extra_bufts = options.get("use_extra_bufts", "1") == "1"
    loaded = lib.llama_model_load_from_file(model.encode(), params)
    wanted = lib.llama_context_default_params()
    wanted.n_ctx, wanted.n_batch, wanted.n_ubatch, wanted.n_seq_max, wanted.kv_unified = 8704, 2048, 512, 8, True
    wanted.n_threads = wanted.n_threads_batch = threads
    context, batch = lib.llama_init_from_model(loaded, wanted), lib.llama_batch_init(2048, 0, 8)
    vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(loaded))

    def compute(items: Sequence[tuple[int, int, int, bool]]) -> list[int]:
        """Items are a token, its position, its sequence, and whether the next one is wanted."""
        found = []
        for at in range(0, len(items), 2048):
            part = items[at : at + 2048]
            batch.n_tokens = len(part)
            for i, (token, position, sequence, want) in enumerate(part):
                batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, position, 1, want
                batch.seq_id[i][0] = sequence
            if lib.llama_decode(context, batch):
                raise RuntimeError("llama_decode failed")
            for i, (*_, want) in enumerate(part):
                if want:
                    logits = lib.llama_get_logits_ith(context, i)
                    found.append(int(np.ctypeslib.as_array(logits, shape=(vocab,)).argmax()))
        return found

    def run(prompts: list[list[int]], new: int) -> list[float]:
        lib.llama_memory_clear(lib.llama_get_memory(context), True)
        began = clock()
        items = [
            (token, place, sequence, place == len(prompt) - 1)
            for sequence, prompt in enumerate(prompts)
            for place, token in enumerate(prompt)
        ]
        tokens, times = compute(items), [clock() - began]
        for step in range(new - 1):
            tokens = compute([(token, len(prompts[row]) + step, row, True) for row, token in enumerate(tokens)])
            times.append(clock() - began)
        return times

    return run


def start_vllm(model: str, options: dict[str, str], threads: int) -> Run:
    """vLLM's engine in this process, without its prefix cache."""
    os.environ |= {
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    sys.path.remove(os.path.dirname(os.path.abspath(__file__)))  # where kernels.py hides a package of that name
    from vllm import LLM, SamplingParams

    eager = options.get("enforce_eager", "0") == "1"
    llm = LLM(
        model, dtype="bfloat16", max_model_len=8704, max_num_seqs=8, enable_prefix_caching=False, enforce_eager=eager
    )
    engine, ids = llm.llm_engine, iter(range(1 << 30))

    def run(prompts: list[list[int]], new: int) -> list[float]:
        params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True)
        for prompt in prompts:
            engine.add_request(str(next(ids)), {"prompt_token_ids": prompt}, params)
        began, tokens, times = clock(), dict[str, int](), list[float]()
        while engine.has_unfinished_requests():
            for output in engine.step():
                tokens[output.request_id] = len(output.outputs[0].token_ids)
            if len(tokens) == len(prompts):
                times.append(clock() - began)
        return times

    return run


STARTS = {"llmk": start_llmk, "llama": start_llama, "vllm": start_vllm}


def serve(kind: str, model: str, options: dict[str, str], threads: int) -> None:
    """The process of an engine: a line for each load that it reads, once it has said how long its start took."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    began = clock()
    run = STARTS[kind](model, options, threads)
    started = clock() - began
    run([[1000 + place for place in range(16)]], 2)
    print(json.dumps([started]), file=out, flush=True)
    for line in sys.stdin:
        print(json.dumps(run(*json.loads(line))), file=out, flush=True)


class Engine:
    """An engine in a process of its own; options are as the command line has them."""

    def __init__(self, text: str, threads: int) -> None:
        self.name, _, rest = text.partition("=")
        rest, _, python = rest.partition("@")
        model, *options = rest.split(",")
        kind = next((kind for kind in STARTS if self.name.startswith(kind)), "")
        if not kind:
            raise SystemExit(f"{self.name} is no engine: names start with {', '.join(STARTS)}")
        settings = dict(option.split("=", 1) for option in options)
        command = [python or sys.executable, __file__, "--child", json.dumps([kind, model, settings, threads])]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        (self.start_s,) = self._reply()
        self.firsts: dict[str, list[float]] = {}
        self.steps: dict[str, list[float]] = {}

    def measure(self, name: str, prompts: list[list[int]], new: int) -> None:
        """Runs a load and takes note of its times."""
        assert self._process.stdin is not None
        print(json.dumps([prompts, new]), file=self._process.stdin, flush=True)
        times = self._reply()
        took = [f"{1e3 * (after - before):.1f}" for before, after in pairwise(times)]
        print(f"{self.name} {name}: {times[0]:.3f} s, then ms {' '.join(took)}", file=sys.stderr, flush=True)
        self.firsts.setdefault(name, []).append(times[0])
        if len(times) > 1:
            took = [after - before for before, after in pairwise(times)]
            self.steps.setdefault(name, []).append(1e3 * statistics.median(took))

    def report(self, name: str) -> dict[str, Any]:
        """The medians of a load."""
        steps, load = self.steps.get(name), Load.of(name)
        line: dict[str, Any] = {"engine": self.name, "load": name, "start_s": round(self.start_s, 2)}
        line["first_s"] = round(statistics.median(self.firsts[name]), 3)
        line["prompt_tok_s"] = round(load.requests * load.prompt / statistics.median(self.firsts[name]), 1)
        if steps:
            line["step_ms"] = round(statistics.median(steps), 2)
            line["steps_ms"] = [round(step, 2) for step in steps]
        return line

    def _reply(self) -> list[float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with {self._process.wait()}")
        times: list[float] = json.loads(line)
        return times


def read_bandwidth(threads: int) -> float:
    """Bytes per second of a sum over more than any cache holds, the best of five."""
    import torch

    torch.set_num_threads(threads)
    buffer, times = torch.ones(1 << 28), list[float]()
    for _ in range(5):
        began = time.perf_counter()
        buffer.sum()
        times.append(time.perf_counter() - began)
    return buffer.nbytes / min(times)


def processor() -> str:
    """Its name and what it can do that kernels use."""
    with open("/proc/cpuinfo") as file:
        fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in file)}
    flags = fields.get("flags", "").split()
    known = [flag for flag in ("avx2", "f16c", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile") if flag in flags]
    return f"{fields.get('model name', '')} ({' '.join(known)})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", action="append", default=[], help="NAME=MODEL[,OPTION=VALUE...][@PYTHON]")
    parser.add_argument("--load", nargs="+", default=list(LOADS), help="REQUESTSxPROMPT+NEW")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processor-time", action="store_true", help="count processor time, for one thread")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        serve(*json.loads(args.child))
        return
    if args.processor_time:
        os.environ["PROCESSOR_TIME"] = "1"  # of the engines' processes
    draw = random.Random(args.seed)
    engines = [Engine(text, args.threads) for text in args.engine]
    for _ in range(args.rounds):
        for name in args.load:
            load = Load.of(name)
            for engine in engines:
                prompts = [draw.choices(IDS, k=load.prompt) for _ in range(load.requests)]
                engine.measure(name, prompts, load.new)
    for name in args.load:
        for engine in engines:
            print(json.dumps(engine.report(name)), flush=True)
    rate = read_bandwidth(args.threads)
    print(json.dumps({"processor": processor(), "threads": args.threads, "read_gb_s": round(rate / 1e9, 1)}))


if __name__ == "__main__":
    main()

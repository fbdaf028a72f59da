"""``llmk bench trace``: runs a load in this process and records a trace of every step."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from llmk.api import ConfigError
from llmk.config import flags

if TYPE_CHECKING:
    from llmk.engine.core import EngineCore
    from llmk.engine.wire.request import EngineRequest

SECTIONS = ("model", "platform", "select", "plugins", "engine", "scheduler", "speculation", "cache")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    flags.add_model(parser)
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="where the trace goes (JSON)")
    load = parser.add_argument_group("load")
    load.add_argument("--requests", type=_positive, default=16, metavar="N", help="requests, all at once [16]")
    load.add_argument("--prompt-tokens", type=_positive, default=128, metavar="N", help="tokens of each prompt [128]")
    load.add_argument(
        "--output-tokens", type=_positive, default=64, metavar="N", help="tokens to generate for each [64]"
    )
    flags.add_flags(parser, SECTIONS)


def run(args: argparse.Namespace) -> int:
    """Runs a short load to warm up, then the load itself; writes the trace and prints its summary."""
    if not args.output.resolve().parent.is_dir():
        raise ConfigError(f"{args.output} can't be written: there is no such folder", hint="name another with --output")
    settings = flags.load_settings(args)
    from llmk.engine.device.trace import Trace
    from llmk.engine.launch import build_core
    from llmk.planning.boot import boot
    from llmk.planning.shadows import shadowed

    trace = Trace()
    core, info = build_core(shadowed(boot(settings)), trace)
    length = args.prompt_tokens + args.output_tokens
    if length > info.max_model_len:
        raise ConfigError(
            f"{args.prompt_tokens} prompt and {args.output_tokens} output tokens are {length}, "
            f"the model's context is {info.max_model_len}",
            hint="lower --prompt-tokens or --output-tokens",
        )
    random = Random(settings.config.engine.seed)
    _drive(core, list(_load(random, info.vocab_size, min(2, args.requests), args.prompt_tokens, 2)))
    trace.clear()
    _drive(core, list(_load(random, info.vocab_size, args.requests, args.prompt_tokens, args.output_tokens)))
    trace.write(args.output)
    print("\n".join((*trace.summary().lines(), f"in flight  {core.depth}", f"{args.output} opens in ui.perfetto.dev")))
    return 0


def _load(random: Random, vocab_size: int, requests: int, prompt: int, output: int) -> Iterator[EngineRequest]:
    """Requests with random prompts, that generate exactly ``output`` tokens."""
    from llmk.engine.wire.request import EngineRequest
    from llmk.engine.wire.sampling_params import SamplingParams

    params = SamplingParams(max_tokens=output, ignore_eos=True)
    for number in range(requests):
        tokens = [random.randrange(vocab_size) for _ in range(prompt)]
        yield EngineRequest(id=str(number), prompt_token_ids=tokens, params=params, seed=number)


def _drive(core: EngineCore, requests: list[EngineRequest]) -> None:
    """Runs ``requests`` until all are finished. Raises the error of one that fails."""
    from tqdm import tqdm

    from llmk.engine.wire.failure import Failure

    with tqdm(total=len(requests), unit="request", leave=False, disable=None) as progress:
        for request in requests:
            core.add(request)
        while core.has_work:
            for output in core.step().outputs:
                if output.finish_reason == "error":
                    raise Failure.in_output(output).error()
                if output.finish_reason is not None:
                    progress.update()


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return int(text)

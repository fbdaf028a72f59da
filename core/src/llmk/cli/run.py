"""``llmk run``: answers one prompt, in this process."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import closing

from llmk.api import ConfigError
from llmk.cli import sampling
from llmk.config import flags

SECTIONS = ("model", "platform", "parallel", "select", "plugins", "engine", "scheduler", "speculation", "cache")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    usage = "%(prog)s [OPTION ...] [MODEL] PROMPT"
    parser = subparsers.add_parser("run", help="answer one prompt and stop", usage=usage)
    words = (
        "checkpoint folder or name (without one: the embedded demo model), then the prompt; '-' reads that from "
        "standard input"
    )
    parser.add_argument("words", nargs="+", metavar="[MODEL] PROMPT", help=words)
    parser.add_argument("--raw", action="store_true", help="continue the prompt as it is, without the chat template")
    sampling.add_flags(parser)
    flags.add_flags(parser, SECTIONS)


def run(args: argparse.Namespace) -> int:
    """Prints the response as it is generated: content on standard output, reasoning on standard error."""
    *model, prompt = args.words
    if len(model) > 1:
        hint = f'quote the prompt: llmk run "{" ".join(args.words)}"'
        raise ConfigError(f"{len(args.words)} words are given, a model and a prompt are two", hint=hint)
    if not model and os.path.isfile(f"{prompt}/config.json"):
        raise ConfigError(f"{prompt} is a model, and a prompt is missing", hint=f'llmk run {prompt} "PROMPT"')
    if model:
        vars(args)["model.path"] = model[0]
    from llmk.cli.conversation.client import LocalChatClient, Printer

    prompt = sys.stdin.read() if prompt == "-" else prompt
    options = sampling.options(args)
    printer = Printer(sys.stdout, sys.stderr)
    with closing(LocalChatClient(flags.load_settings(args))) as talk:
        deltas = talk.complete(prompt, options) if args.raw else talk.chat(sampling.messages(args, prompt), options)
        for delta in deltas:
            printer.show(delta)
    printer.end()
    return 0

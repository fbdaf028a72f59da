"""``llmk run``: one answer, in this process."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing

from llmk.cli import sampling
from llmk.config import flags

SECTIONS = ("model", "platform", "parallel", "select", "plugins", "engine", "scheduler", "cache")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser("run", help="answer one prompt and stop")
    parser.add_argument("model.path", metavar="MODEL", help="checkpoint folder, or 'demo'")
    parser.add_argument("prompt", metavar="PROMPT", help="'-' reads it from standard input")
    parser.add_argument(
        "--raw", action="store_true", help="continue the prompt as it stands, without the chat template"
    )
    sampling.add_flags(parser)
    flags.add_flags(parser, SECTIONS)


def run(args: argparse.Namespace) -> int:
    """Prints the answer as it comes: content on standard output, thinking on standard error."""
    from llmk.cli.talk import LocalTalk, Printer

    prompt = sys.stdin.read() if args.prompt == "-" else args.prompt
    options = sampling.options(args)
    printer = Printer(sys.stdout, sys.stderr)
    with closing(LocalTalk(flags.load_settings(args))) as talk:
        deltas = talk.complete(prompt, options) if args.raw else talk.chat(sampling.messages(args, prompt), options)
        for delta in deltas:
            printer.show(delta)
    printer.end()
    return 0

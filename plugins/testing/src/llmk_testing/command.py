"""``llmk plugins check``: which a plugin's author runs before publishing a wheel."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from llmk.api import ConfigError
from llmk_testing.suites import SUITES

if TYPE_CHECKING:
    from llmk_testing.case import Result


class CheckCommand:
    """``llmk plugins check``."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        parser.add_argument("distributions", nargs="+", metavar="DIST", help="a distribution, or an entry point of one")
        parser.add_argument(
            "--platform", default="", metavar="NAME", help="the platform to run kernels on (default: the best one here)"
        )
        parser.add_argument("--only", default="", metavar="REGEX", help="only cases whose 'spec::name' matches")
        kinds = ["wheel", *SUITES]
        text = f"specs of this kind, which is one of {', '.join(kinds)} (repeatable)"
        parser.add_argument("--kind", action="append", default=[], choices=kinds, metavar="KIND", help=text)
        parser.add_argument("--thorough", action="store_true", help="more shapes and more rounds")
        parser.add_argument("--seed", type=int, default=0, help="seed of random inputs")
        parser.add_argument(
            "--timeout", type=float, default=120.0, metavar="SECONDS", help="for one case (%(default)g)"
        )
        parser.add_argument("--json", type=Path, metavar="FILE", help="write every result as JSON")
        parser.add_argument("--markdown", type=Path, metavar="FILE", help="write a table for the plugin's README")
        parser.add_argument("--list", action="store_true", help="list the cases, run none")
        parser.add_argument("-x", dest="first_failure", action="store_true", help="stop at the first failure")

    def run(self, args: argparse.Namespace) -> int:
        """Checks each distribution and prints the card; returns 1 if any case failed."""
        from llmk_testing.card import Card  # imported late: plugin discovery must stay fast
        from llmk_testing.check import Check, find_distributions
        from llmk_testing.child import Job
        from llmk_testing.collect import Options

        try:
            re.compile(args.only)
        except re.error as error:
            raise ConfigError(
                f"--only {args.only!r} is not a regular expression: {error}", hint="escape special characters"
            ) from error
        distributions = find_distributions(args.distributions)
        terminal = sys.stdout.isatty()
        card = Card(distributions, args.thorough, args.seed)
        check = Check(card, args.timeout, args.first_failure, _show if terminal else lambda result: None)
        options = Options(args.kind, args.platform, args.thorough, args.seed)
        for distribution in distributions:
            check.run(Job(distribution, options, args.only, args.list))
        if not check.listed and not card.results:
            names = ", ".join(distributions)
            raise ConfigError(
                f"no case of {names} matches the kind and name", hint="llmk plugins check --list lists them"
            )
        if args.list:
            print("\n".join(check.listed))
        else:
            print(card.render(color=terminal))
        if args.json:
            args.json.write_text(json.dumps(card.as_dict(), indent=1) + "\n")
        if args.markdown:
            args.markdown.write_text(card.markdown())
        return int(card.failed)


def _show(result: Result) -> None:
    """Shows each result on the same terminal line."""
    mark = {"passed": ".", "failed": "F", "skipped": "s"}[result.outcome]
    print(f"\r\x1b[K{mark} {result.spec}::{result.name}"[:150], end="\r", file=sys.stderr, flush=True)

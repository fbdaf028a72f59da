"""``llmk tune``: measures which kernels are fastest for a model on this machine; ``serve`` then chooses those."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing

from llmk.api import ConfigError
from llmk.cli.terminal import width_of
from llmk.cli.tune_progress import TuneProgress
from llmk.config import flags
from llmk.config.measurements import OFF

SECTIONS = ("model", "platform", "parallel", "select", "plugins", "engine", "scheduler", "cache")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser("tune", help="measure which kernels are fastest here for a model")
    flags.add_model(parser)
    only = "kinds, sites and ops to measure (linear,attention,rms_norm); all others stay as they are"
    parser.add_argument("--only", metavar="A,B", default="", help=only)
    flags.add_flags(parser, SECTIONS)


def run(args: argparse.Namespace) -> int:
    """Measures and saves. No weights are read, since only their shapes matter."""
    settings = flags.load_settings(args)
    if settings.config.platform.measurements == OFF:
        raise ConfigError(
            f"platform.measurements is {OFF!r}, so nothing can be saved", hint="name a folder, or leave it empty"
        )
    from llmk.engine.measuring.tune import Tuner
    from llmk.planning.boot import boot
    from llmk.planning.tables import wrapped

    progress = TuneProgress(sys.stdout, sys.stderr)
    only = frozenset(filter(None, args.only.split(",")))
    with closing(progress):
        path = Tuner(boot(settings, outline=True), progress.say, only, progress.update).run()
    found = f"saved in {path}; llmk explain shows what it changes" if path else "no site has several candidates"
    print(wrapped(found, width_of(sys.stdout)))
    return 0

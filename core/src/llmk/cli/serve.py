"""``llmk serve``: the OpenAI-compatible server."""

from __future__ import annotations

import argparse
import logging
import sys
from typing import TYPE_CHECKING

from llmk.api import ConfigError
from llmk.cli.output import say
from llmk.cli.terminal import Style, width_of
from llmk.config import flags

if TYPE_CHECKING:
    from llmk.config import Settings
    from llmk.serve.service import Service

logger = logging.getLogger(__name__)

SECTIONS = (
    *("model", "platform", "parallel", "replicas", "select", "plugins", "engine", "scheduler", "speculation"),
    *("cache", "events", "server", "limits", "tenants"),
)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser("serve", help="serve a model through an OpenAI-compatible API")
    flags.add_model(parser)
    flags.add_flags(parser, SECTIONS)


def run(args: argparse.Namespace) -> int:
    """Serves until a signal stops it."""
    settings = flags.load_settings(args)
    _check_name(settings)
    from llmk.serve import lifecycle

    lifecycle.serve(settings, _announce, args.spawned)
    return 0


def _check_name(settings: Settings) -> None:
    """Refuses a served name without a model: the demo model would be served under the name of another one."""
    model = settings.config.model
    if model.served_name and not model.path and settings.origin("model.path").source == "default":
        raise ConfigError(
            f"the model is to be served as {model.served_name!r}, but no model is named",
            hint="name the checkpoint first: llmk serve MODEL --served-model-name NAME ('demo' is the embedded model)",
        )


def _announce(service: Service, url: str) -> None:
    from llmk.cli.start_report import render_start

    if service.config.log_format == "json":
        logger.info("%s", render_start(service, Style()))
    else:
        say(f"\n{render_start(service, Style(sys.stderr), width_of(sys.stderr))}\n")
    print(Style(sys.stdout).strong(f"serving {service.engine.model_name} on {url}"), flush=True)

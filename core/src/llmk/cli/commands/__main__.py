"""The process that imports plugins for the help: writes their commands, and what is broken, as JSON."""

from __future__ import annotations

import json
import os

from llmk.api import LlmkError
from llmk.api.errors import describe
from llmk.cli.commands.plugin_commands import summaries
from llmk.cli.commands.summaries import PLUGIN_SECONDS
from llmk.config import load
from llmk.kernel.registry import Registry


def main() -> None:
    """Imports spec modules, and nothing else. What plugins print goes to standard error, and their threads don't keep
    this process from ending."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    commands, problems = dict[str, str](), list[str]()
    try:
        rules = load().config.plugins
        limit = min(rules.import_seconds, PLUGIN_SECONDS)
        registry = Registry.discover(rules.model_copy(update={"import_seconds": limit}))
        commands = summaries(registry)
        broken = [plugin for plugin in registry.plugins if plugin.state == "broken"]
        problems = [f"{p.wheel} is broken: {'; '.join(map(str, p.reasons))}\n  hint: {p.way_out}" for p in broken]
    except Exception as error:
        problems = [str(error) if isinstance(error, LlmkError) else describe(error)]
    json.dump({"commands": commands, "problems": problems}, out)
    out.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

"""Command-line flags generated from the schema: ``--section.key``, and short names for common ones."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path as FilePath
from typing import Any

from llmk.config.schema import Config
from llmk.config.schema_tree import Leaf, join, leaves
from llmk.config.settings import Settings, load
from llmk.config.sources import FILE_NAME, flag_name

ALIASES = {
    "model.dtype": "--dtype",
    "model.max_model_len": "--max-model-len",
    "model.served_name": "--served-model-name",
    "server.host": "--host",
    "server.port": "--port",
    "server.api_keys": "--api-key",
    "scheduler.max_num_seqs": "--max-num-seqs",
    "replicas.count": "--replicas",
    "engine.strict": "--strict",
    "engine.deterministic": "--deterministic",
}

COMMON = frozenset(ALIASES) | {
    *("model.path", "model.quantization", "platform.use", "parallel.tensor"),
    *("cache.memory_share", "cache.memory_gib", "speculation.use", "server.log_level"),
} - {"engine.deterministic"}
"""What ``--help`` shows; ``--help-all`` shows all."""

_FILE, _SET = "config_file", "config_values"


def add_model(parser: argparse.ArgumentParser) -> None:
    """Adds the positional ``MODEL``, which sets ``model.path``."""
    text = "checkpoint folder or file, or a name: org/name[@revision] (without one: the embedded demo model)"
    parser.add_argument("model.path", nargs="?", metavar="MODEL", default=argparse.SUPPRESS, help=text)


def add_flags(parser: argparse.ArgumentParser, sections: Sequence[str]) -> None:
    """Adds ``--config``, ``--set`` and a flag for every value of ``sections``. Underscores may be written as dashes."""
    common = parser.add_argument_group("configuration", "flags win over LLMK__SECTION__KEY, which wins over the file")
    common.add_argument("--help-all", action=HelpAll, help="list every option, and not only the common ones")
    common.add_argument("--config", dest=_FILE, type=FilePath, metavar="FILE", help=f"instead of ./{FILE_NAME}")
    text = "any value, also of plugins and sites; --plugin.NAME.KEY=VALUE is short for --set plugin.NAME.KEY=VALUE"
    common.add_argument("--set", dest=_SET, action="append", type=_assignment, metavar="PATH=VALUE", help=text)
    for section in sections:
        title = Config.model_fields[section].annotation
        group = parser.add_argument_group(section, (title.__doc__ if title else "") or "")
        for path, leaf in leaves().items():
            if path[0] == section:
                _add_flag(group, leaf)


class HelpAll(argparse.Action):
    """Prints the help of all options, and ends."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """See argparse."""
        print(parser.format_help(), end="")
        parser.exit()


@contextmanager
def only_common(parser: argparse.ArgumentParser) -> Iterator[None]:
    """While the context is open, hides the options that are not common, groups that have no others, and all names of an
    option but the shortest."""
    actions = {action: (action.help, action.option_strings) for action in parser._actions}
    texts = {group: group.description for group in parser._action_groups}
    uncommon = _uncommon()
    for action, (help, names) in actions.items():
        twice = action.dest == "model.path" and names  # it is the first word, too
        action.help = argparse.SUPPRESS if action.dest in uncommon or twice else help
        if "." in action.dest:
            action.option_strings = sorted(names, key=lambda name: ("." in name, len(name)))[:1]
    for group in texts:
        if group.title in Config.model_fields:
            group.description = None
    try:
        yield
    finally:
        for action, (help, names) in actions.items():
            action.help, action.option_strings = help, names
        for group, text in texts.items():
            group.description = text


def _uncommon() -> frozenset[str]:
    return frozenset(map(join, leaves())) - COMMON


def collect(namespace: argparse.Namespace) -> dict[str, Any]:
    """The values of the given flags, by dotted path."""
    values = {name: value for name, value in vars(namespace).items() if "." in name}
    return values | dict(getattr(namespace, _SET, None) or ())


def load_settings(namespace: argparse.Namespace) -> Settings:
    """Loads the configuration with the flags of ``namespace``. Raises ConfigError."""
    return load(collect(namespace), file=getattr(namespace, _FILE, None))


def _assignment(text: str) -> tuple[str, str]:
    path, separator, value = text.partition("=")
    if not separator or "." not in path:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form PATH=VALUE")
    with_names = path.startswith(("plugin.", "adapters."))
    return path.strip() if with_names else path.strip().replace("-", "_"), value


def _add_flag(group: argparse._ArgumentGroup, leaf: Leaf) -> None:
    path = join(leaf.path)
    names = [flag_name(path), *([ALIASES[path]] if path in ALIASES else [])]
    options: dict[str, Any] = {"dest": path, "default": argparse.SUPPRESS}
    if leaf.is_bool:
        options["action"] = argparse.BooleanOptionalAction
    elif leaf.is_list:
        options |= {"action": "append", "metavar": "A,B"}
    elif leaf.choices:
        options["choices"] = leaf.choices
    else:
        options["metavar"] = leaf.path[-1].upper()
    group.add_argument(*names, help=_help(leaf), **options)
    if "_" in path:
        group.add_argument(f"--{path}", help=argparse.SUPPRESS, **options)


def _help(leaf: Leaf) -> str:
    text = leaf.description.replace("%", "%%")
    shown = "" if leaf.default in ("", (), None) else f" [{leaf.default}]"
    return text + shown

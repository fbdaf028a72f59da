"""``llmk keys``: API keys with roles and quotas, in a database."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from llmk.api import ConfigError
from llmk.cli.output import say
from llmk.config import load
from llmk.planning.tables import render_rows

if TYPE_CHECKING:
    from llmk.serve.tenants.key_store import KeyStore

DAY = 86_400
ACTIONS = {
    "create": "make a key, and print it once",
    "list": "list keys with their quotas and usage",
    "update": "change what a key allows",
    "revoke": "delete a key",
}
QUOTAS = {
    "requests_per_minute": ("requests per minute", int),
    "tokens_per_minute": ("prompt and output tokens per minute", int),
    "concurrency": ("requests at a time", int),
    "budget": ("tokens in all", int),
    "weight": ("share of the engine, relative to other keys [1]", float),
}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser("keys", help="manage API keys with roles and quotas")
    actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)
    for name, help in ACTIONS.items():
        action = actions.add_parser(name, help=help)
        text = "sqlite, or a URL of SQLAlchemy [tenants.database, else sqlite]"
        action.add_argument("--database", default="", metavar="URL", help=text)
        if name == "list":
            action.add_argument("--json", action="store_true", help="print JSON")
            continue
        action.add_argument("name", metavar="NAME", help="who the key is for")
        if name in ("create", "update"):
            _add_quotas(action)
        if name == "update":
            action.add_argument("--reset-budget", action="store_true", help="make the whole budget available again")


def _add_quotas(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--role", choices=("user", "admin"), help="admin: operators' routes too [user]")
    for name, (text, kind) in QUOTAS.items():
        limit = "" if name == "weight" else "; 0: no limit"
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar="N", help=text + limit)
    parser.add_argument("--days", type=int, metavar="N", help="until it expires; 0: never")


def run(args: argparse.Namespace) -> int:
    """Runs an action."""
    from llmk.serve.tenants.key_store import SQLITE, KeyStore

    configured = load().config.tenants.database
    store = KeyStore(args.database or configured or SQLITE)
    actions: dict[str, Callable[[KeyStore, argparse.Namespace], None]] = {
        "create": _create,
        "list": _list,
        "update": _update,
        "revoke": _revoke,
    }
    try:
        actions[args.action](store, args)
    finally:
        store.close()
    if args.action != "list":
        served = args.database or SQLITE
        used = f"start them with --tenants.database {served}" if not configured else "they look every 2 s"
        say(f"servers take this over by themselves ({used})")
    return 0


def _quotas(args: argparse.Namespace) -> dict[str, Any]:
    given = {name: getattr(args, name) for name in ("role", *QUOTAS) if getattr(args, name) is not None}
    if args.days is not None:
        if args.days < 0:
            raise ConfigError(f"--days {args.days} is in the past")
        given["expires_at"] = int(time.time()) + args.days * DAY if args.days else 0
    return given


def _create(store: KeyStore, args: argparse.Namespace) -> None:
    secret, key = store.create(args.name, **_quotas(args))
    print(secret)
    say(f"the key of {key.name!r} ({key.role}, tenant {key.tenant}) is shown this once; only its digest is kept")


def _update(store: KeyStore, args: argparse.Namespace) -> None:
    quotas = _quotas(args)
    if not quotas and not args.reset_budget:
        raise ConfigError("nothing is to be changed", hint="llmk keys update --help lists what can be")
    key = store.update(args.name, quotas, reset=args.reset_budget)
    say(f"the key of {key.name!r} is changed")


def _revoke(store: KeyStore, args: argparse.Namespace) -> None:
    store.revoke(args.name)
    say(f"the key of {args.name!r} is revoked")


def _list(store: KeyStore, args: argparse.Namespace) -> None:
    from dataclasses import asdict

    from llmk.serve.tenants.key_store import Usage

    used = store.usage()
    found = [(key, used.get(key.digest, Usage())) for key in store.keys().values()]
    if args.json:
        rows = [{**asdict(key), "digest": key.digest[:16], "usage": asdict(usage)} for key, usage in found]
        print(json.dumps(rows, indent=2))
        return
    headings = ("name", "role", "req/min", "tok/min", "at once", "weight", "spent", "requests", "expires")
    print(
        render_rows(
            headings,
            [
                (
                    key.name,
                    key.role,
                    str(key.requests_per_minute or "-"),
                    str(key.tokens_per_minute or "-"),
                    str(key.concurrency or "-"),
                    f"{key.weight:g}",
                    f"{usage.spent} of {key.budget}" if key.budget else str(usage.spent),
                    str(usage.requests),
                    time.strftime("%Y-%m-%d", time.gmtime(key.expires_at)) if key.expires_at else "never",
                )
                for key, usage in found
            ],
        )
    )

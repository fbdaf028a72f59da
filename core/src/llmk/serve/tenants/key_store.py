"""The database of keys and of what they have used."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmk.api import ConfigError
from llmk.serve.tenants.api_key import ROLES, ApiKey, digest_of, new_secret

if TYPE_CHECKING:
    from sqlalchemy import Connection, Update

SQLITE = "sqlite"
NAME_LENGTH = 128
_BITS = {"requests_per_minute": 31, "tokens_per_minute": 62, "concurrency": 31, "budget": 62, "expires_at": 62}


@dataclass(frozen=True, slots=True)
class Usage:
    """What a key has used: totals since it was created, and ``spent``, the tokens that count for its budget. The rates
    had ``requests_left`` and ``tokens_left`` at the time ``at``."""

    spent: int = 0
    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    requests_left: float = 0.0
    tokens_left: float = 0.0
    at: float = 0.0


def file_of_keys() -> Path:
    """The SQLite file of the setting ``sqlite``, in the user's state directory."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state, "llmk", "keys.sqlite")


class KeyStore:
    """Keys in the ``database``: ``sqlite``, or a URL of SQLAlchemy. Raises ConfigError where it can't be used."""

    def __init__(self, database: str) -> None:
        try:
            from sqlalchemy import create_engine, event

            from llmk.serve.tenants.tables import METADATA
        except ImportError as error:
            hint = "pip install 'llmk-core[storage]'"
            raise ConfigError("keys with quotas need SQLAlchemy, which is not installed", hint=hint) from error
        url = database
        if database == SQLITE:
            url = f"sqlite:///{file_of_keys()}"
        with _readable(database):
            if database == SQLITE:
                file_of_keys().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            options = {"connect_args": {"timeout": 10, "check_same_thread": False}} if url.startswith(SQLITE) else {}
            self._engine = create_engine(url, pool_pre_ping=True, **options)
            if url.startswith(SQLITE):
                event.listen(self._engine, "connect", _prepare)
            METADATA.create_all(self._engine)
        self._database = database
        if database == SQLITE:
            file_of_keys().chmod(0o600)

    def close(self) -> None:
        """Closes its connections."""
        self._engine.dispose()

    def keys(self) -> dict[str, ApiKey]:
        """All keys, by digest."""
        from llmk.serve.tenants.tables import KEYS

        with self._transaction() as connection:
            rows = connection.execute(KEYS.select().order_by(KEYS.c.name))
            return {row.digest: ApiKey(**row._mapping) for row in rows}

    def changes(self) -> int:
        """A number that is another one after keys were changed."""
        from sqlalchemy import func, select

        from llmk.serve.tenants.tables import CHANGES

        with self._transaction() as connection:
            return connection.execute(select(func.max(CHANGES.c.number))).scalar() or 0

    def usage(self, since: float = 0.0) -> dict[str, Usage]:
        """What was used, by digest: of keys that were used after ``since``."""
        from llmk.serve.tenants.tables import USAGE

        with self._transaction() as connection:
            rows = (dict(row._mapping) for row in connection.execute(USAGE.select().where(USAGE.c.at >= since)))
            return {row.pop("digest"): Usage(**row) for row in rows}

    def create(self, name: str, **quotas: Any) -> tuple[str, ApiKey]:
        """A new key, which is returned this once. Raises ConfigError for a name that is taken."""
        from llmk.serve.tenants.tables import CHANGES, KEYS

        if not name or len(name) > NAME_LENGTH or not name.isprintable():
            raise ConfigError(f"the name of a key has 1 to {NAME_LENGTH} printable characters")
        secret = new_secret()
        key = _checked(ApiKey(name=name, digest=digest_of(secret.encode()), created_at=int(time.time()), **quotas))
        with self._transaction() as connection:
            if connection.execute(KEYS.select().where(KEYS.c.name == name)).first():
                raise ConfigError(f"there is a key {name!r} already", hint=f"llmk keys update {name}, or another name")
            connection.execute(KEYS.insert().values(**asdict(key)))
            connection.execute(CHANGES.insert())
        return secret, key

    def update(self, name: str, quotas: Mapping[str, Any], *, reset: bool = False) -> ApiKey:
        """Changes what a key allows; ``reset``: so that nothing is spent. Raises ConfigError for an unknown name."""
        from llmk.serve.tenants.tables import CHANGES, KEYS, USAGE

        with self._transaction() as connection:
            row = connection.execute(KEYS.select().where(KEYS.c.name == name)).first()
            if row is None:
                raise ConfigError(f"there is no key {name!r}", hint="llmk keys list")
            key = _checked(ApiKey(**{**row._mapping, **quotas}))
            connection.execute(KEYS.update().where(KEYS.c.name == name).values(**asdict(key)))
            connection.execute(CHANGES.insert())
            if reset:
                connection.execute(USAGE.update().where(USAGE.c.digest == key.digest).values(spent=0))
        return key

    def revoke(self, name: str) -> None:
        """Deletes a key and its usage. Raises ConfigError for a key that doesn't exist."""
        key = self.update(name, {})
        from llmk.serve.tenants.tables import CHANGES, KEYS, USAGE

        with self._transaction() as connection:
            connection.execute(CHANGES.insert())
            connection.execute(KEYS.delete().where(KEYS.c.name == name))
            connection.execute(USAGE.delete().where(USAGE.c.digest == key.digest))

    def add_usage(self, used: Mapping[str, Usage]) -> None:
        """Adds to the totals of each digest, since several servers may do so, and sets what is left of the rates."""
        from llmk.serve.tenants.tables import USAGE

        with self._transaction() as connection:
            for digest, more in used.items():
                values = asdict(more)
                more_of = {f"more_{name}": value for name, value in values.items()}
                if not connection.execute(_adding(), {"of": digest, **more_of}).rowcount:
                    connection.execute(USAGE.insert().values(digest=digest, **values))

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with _readable(self._database), self._engine.connect() as connection:
            yield connection
            connection.commit()


@cache
def _adding() -> Update:
    """The statement that adds to a row's totals: making it takes longer than running it."""
    from sqlalchemy import bindparam

    from llmk.serve.tenants.tables import USAGE

    given: dict[str, Any] = {name: bindparam(f"more_{name}") for name in (each.name for each in fields(Usage))}
    totals = {name: USAGE.c[name] + given[name] for name in ("spent", "requests", "prompt_tokens", "output_tokens")}
    return USAGE.update().where(USAGE.c.digest == bindparam("of")).values({**given, **totals})


@contextmanager
def _readable(database: str) -> Iterator[None]:
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (SQLAlchemyError, OSError, ImportError) as error:
        cause = str(getattr(error, "orig", None) or error).splitlines()[0]
        shown = file_of_keys() if database == SQLITE else "tenants.database"
        hint = "let this user write there, or keep it elsewhere: XDG_STATE_HOME=FOLDER, or tenants.database"
        if "locked" in cause:
            hint = "another process has been writing to it for seconds: end that process, or try again"
        elif "full" in cause:
            hint = "free some space there, or keep it elsewhere: XDG_STATE_HOME=FOLDER, or tenants.database"
        raise ConfigError(f"the database of keys ({shown}) can't be used: {cause}", hint=hint) from error


def _prepare(connection: Any, record: object) -> None:
    """What was committed outlives the process without waiting for the disk (WAL): a crash of the machine may lose the
    last moments."""
    for setting in ("journal_mode=WAL", "synchronous=NORMAL"):
        connection.execute(f"PRAGMA {setting}")


def _checked(key: ApiKey) -> ApiKey:
    if key.role not in ROLES:
        raise ConfigError(f"{key.role!r} is no role of a key", hint=" or ".join(ROLES))
    for name, bits in _BITS.items():
        if not 0 <= getattr(key, name) < 1 << bits:
            raise ConfigError(f"{name} = {getattr(key, name)} is out of range", hint="0: no limit")
    if not 0 < key.weight <= 1e6:
        raise ConfigError(f"weight = {key.weight:g} is not between 0 and a million")
    return key

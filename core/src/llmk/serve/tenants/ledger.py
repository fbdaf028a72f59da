"""All keys of the database, in memory, with what they use; a thread saves that, and reads what operators change."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from llmk.api import LlmkError
from llmk.serve.tenants.account import Account
from llmk.serve.tenants.api_key import TENANT_DIGITS
from llmk.serve.tenants.key_store import KeyStore

if TYPE_CHECKING:
    from llmk.serve.generation.request_record import RequestRecord

logger = logging.getLogger(__name__)

REFRESH_SECONDS = 2.0
"""Time between two looks for changes of keys."""
CLOCK_SECONDS = 60.0
"""The most by which clocks of servers that share a database may differ."""


class Ledger:
    """Accounts by digest and by tenant. The event loop counts; a thread writes within milliseconds, so that a server
    that is killed loses no more than what its running requests would have added. Raises ConfigError where the database
    can't be used."""

    def __init__(self, store: KeyStore) -> None:
        self._store = store
        self._accounts: dict[str, Account] = {}
        self._tenants: dict[str, Account] = {}
        self._changed: set[str] = set()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._failed = False
        self._changes, self._seen = -1, 0.0
        self.refresh()
        self._thread = threading.Thread(target=self._run, name="llmk-keys", daemon=True)
        self._thread.start()

    def find(self, digest: str) -> Account | None:
        """The account of a key that may be used."""
        account = self._accounts.get(digest)
        if account is None or (account.key.expires_at and account.key.expires_at <= time.time()):
            return None
        return account

    def touch(self, account: Account) -> None:
        """Has what an account has used saved soon."""
        with self._lock:
            self._changed.add(account.key.digest)
        self._wake.set()

    def charge(self, tenant: str, prompt_tokens: int, output_tokens: int = 0) -> None:
        """Charges the tokens of a request that has ended to its tenant, if that has an account."""
        account = self._tenants.get(tenant)
        if account is not None:
            account.charge(prompt_tokens, output_tokens)
            self.touch(account)

    def charge_record(self, record: RequestRecord) -> None:
        """The same, as a listener of :class:`~llmk.serve.metrics.prometheus.Metrics`."""
        self.charge(record.job.context.tenant, record.usage.prompt_tokens, record.usage.completion_tokens)

    def accounts(self) -> Iterable[Account]:
        """All of them."""
        return list(self._accounts.values())

    def refresh(self) -> None:
        """Reads keys if they were changed, and what other servers have spent since. Raises ConfigError."""
        changes = self._store.changes()
        if changes == self._changes:
            for digest, usage in self._store.usage(since=self._seen).items():
                if account := self._accounts.get(digest):
                    account.change(account.key, usage.spent)
        else:
            self._read()
        self._changes, self._seen = changes, time.time() - CLOCK_SECONDS

    def _read(self) -> None:
        keys, usage = self._store.keys(), self._store.usage()
        found = {}
        for digest, key in keys.items():
            account = self._accounts.get(digest)
            if account is None:
                account = Account(key, usage.get(digest))
            else:
                account.change(key, usage[digest].spent if digest in usage else 0)
            found[digest] = account
        self._accounts = found
        self._tenants = {digest[:TENANT_DIGITS]: account for digest, account in found.items()}

    def close(self) -> None:
        """Saves what is left, and ends the thread."""
        self._closing.set()
        self._wake.set()
        self._thread.join(10)
        self._store.close()

    def _run(self) -> None:
        due = time.monotonic() + REFRESH_SECONDS
        while True:
            self._wake.wait(max(0.0, due - time.monotonic()))
            closing = self._closing.is_set()
            self._wake.clear()
            try:
                self._save()
                if closing:
                    return
                if time.monotonic() >= due:
                    due = time.monotonic() + REFRESH_SECONDS
                    self.refresh()
                self._failed = False
            except LlmkError as error:
                if not self._failed:
                    logger.error("what keys use can't be saved, and is kept in memory: %s", error)
                self._failed = True
                if closing:
                    return
                self._closing.wait(REFRESH_SECONDS)
                self._wake.set()

    def _save(self) -> None:
        with self._lock:
            changed, self._changed = self._changed, set()
        taken = {digest: self._accounts[digest].unsaved() for digest in changed if digest in self._accounts}
        if not taken:
            return
        try:
            self._store.add_usage(taken)
        except LlmkError:
            for digest, usage in taken.items():
                self._accounts[digest].restore(usage)
            with self._lock:
                self._changed |= changed
            raise

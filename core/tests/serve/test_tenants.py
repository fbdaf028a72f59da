"""Keys with roles and quotas."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from llmk.api import ConfigError
from llmk.serve.app import create_app
from llmk.serve.service import Service
from llmk.serve.tenants.account import Account, Bucket, duration
from llmk.serve.tenants.api_key import ApiKey, digest_of
from llmk.serve.tenants.key_store import KeyStore, Usage
from llmk.serve.tenants.ledger import Ledger
from llmk.serve.tenants.tables import KEYS

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/keys.sqlite"


@pytest.fixture
def store(database: str) -> Iterator[KeyStore]:
    made = KeyStore(database)
    yield made
    made.close()


@pytest.fixture
def serving(store: KeyStore, make_service: Callable[..., Service], database: str) -> Iterator[Callable[..., Any]]:
    """Starts a server on the keys that there are; returns its client and its ledger."""
    opened: list[Ledger] = []
    stack = ExitStack()

    def start(**server: Any) -> tuple[TestClient, Ledger]:
        ledger = Ledger(KeyStore(database))
        opened.append(ledger)
        plain = make_service(**server)
        service = Service(
            plain.engine, plain.dialect, plain.config, plain.workers, storage=plain.storage.section, ledger=ledger
        )
        return stack.enter_context(TestClient(create_app(service), base_url="http://localhost")), ledger

    with stack:
        yield start
    for ledger in opened:
        ledger.close()


def ask(client: TestClient, secret: str, **more: Any) -> Any:
    return client.post("/v1/chat/completions", json={**CHAT, **more}, headers={"authorization": f"Bearer {secret}"})


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < until, "it didn't come true within 10 s"
        time.sleep(0.01)


def test_only_keys_of_the_database_are_admitted(store: KeyStore, serving: Any) -> None:
    secret, key = store.create("ada")
    client, _ = serving()
    assert ask(client, secret).status_code == 200
    assert ask(client, secret + "x").status_code == 401
    assert client.post("/v1/chat/completions", json=CHAT).status_code == 401
    assert ask(client, key.digest).status_code == 401, "what is stored is no key"
    assert client.get("/health").status_code == 200


def test_keys_of_the_configuration_are_admitted_too_without_quotas(store: KeyStore, serving: Any) -> None:
    store.create("ada", requests_per_minute=1)
    client, _ = serving(api_keys=("static",))
    answers = [ask(client, "static") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200] * 3
    assert not any(name.startswith("x-ratelimit") for name in answers[0].headers)


def test_requests_over_the_rate_get_429_and_the_standard_headers(store: KeyStore, serving: Any) -> None:
    secret, _ = store.create("ada", requests_per_minute=2)
    client, _ = serving()
    first, second, third = (ask(client, secret) for _ in range(3))
    assert [first.status_code, second.status_code, third.status_code] == [200, 200, 429]
    assert first.headers["x-ratelimit-limit-requests"] == "2"
    assert first.headers["x-ratelimit-remaining-requests"] == "1"
    assert "x-ratelimit-limit-tokens" not in first.headers
    assert 1 <= int(third.headers["retry-after"]) <= 30
    assert third.headers["x-ratelimit-remaining-requests"] == "0"
    assert third.headers["x-ratelimit-reset-requests"].endswith("s")
    error = third.json()["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    models = client.get("/v1/models", headers={"authorization": f"Bearer {secret}"})
    assert models.status_code == 200, "only requests that post something count"


def test_tokens_are_charged_and_refill(store: KeyStore, serving: Any) -> None:
    secret, _ = store.create("ada", tokens_per_minute=5)
    client, ledger = serving()
    used = ask(client, secret).json()["usage"]["total_tokens"]
    assert used > 5, "one answer is over the limit, which is known afterwards"
    refused = ask(client, secret)
    assert refused.status_code == 429
    (account,) = ledger.accounts()
    assert account.tokens.left == pytest.approx(5 - used, abs=0.5)
    account.tokens.refill(time.time() + 600)
    assert account.tokens.left == 5


def test_streams_are_charged(store: KeyStore, serving: Any) -> None:
    secret, _ = store.create("ada")
    client, ledger = serving()
    assert ask(client, secret, stream=True).status_code == 200
    (account,) = ledger.accounts()
    requests, prompt, output = account.totals
    assert requests == 1
    assert prompt > 0 < output
    assert account.running == 0


def test_a_spent_budget_is_refused_until_it_is_reset(store: KeyStore, serving: Any) -> None:
    secret, _ = store.create("ada", budget=1)
    client, ledger = serving()
    assert ask(client, secret).status_code == 200
    refused = ask(client, secret)
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == refused.json()["error"]["type"] == "insufficient_quota"
    assert "retry-after" not in refused.headers, "waiting doesn't help"
    wait_until(lambda: bool(store.usage()) and next(iter(store.usage().values())).spent > 1)
    store.update("ada", {}, reset=True)
    ledger.refresh()
    assert ask(client, secret).status_code == 200


def test_what_was_used_outlives_the_server(store: KeyStore, serving: Any) -> None:
    secret, key = store.create("ada", requests_per_minute=2, budget=10_000)
    client, first = serving()
    assert [ask(client, secret).status_code for _ in range(3)] == [200, 200, 429]
    (before,) = first.accounts()
    wait_until(lambda: store.usage().get(key.digest, Usage()).spent == before.spent > 0)
    client, second = serving()  # the first was not closed, as with kill -9
    assert ask(client, secret).status_code == 429
    (account,) = second.accounts()
    assert account.spent == before.spent
    assert account.totals == before.totals


def test_concurrency_is_bounded() -> None:
    account = Account(ApiKey(name="ada", digest="0" * 64, concurrency=2), None)
    assert account.admit(0.0) is None
    assert account.admit(0.0) is None
    refused = account.admit(0.0)
    assert refused is not None
    assert (refused.quota, account.running) == ("concurrency", 2)
    account.leave()
    assert account.admit(0.0) is None


def test_operators_change_keys_while_the_server_runs(store: KeyStore, serving: Any) -> None:
    secret, _ = store.create("ada", requests_per_minute=1)
    client, ledger = serving()
    assert [ask(client, secret).status_code for _ in range(2)] == [200, 429]
    store.update("ada", {"requests_per_minute": 5})
    wait_until(lambda: next(iter(ledger.accounts())).key.requests_per_minute == 5)
    assert ask(client, secret).status_code == 200
    store.revoke("ada")
    wait_until(lambda: not list(ledger.accounts()))
    assert ask(client, secret).status_code == 401


def test_expired_keys_are_refused(store: KeyStore, serving: Any) -> None:
    secret, _ = store.create("ada", expires_at=int(time.time()) - 1)
    client, _ = serving()
    assert ask(client, secret).status_code == 401


def test_operators_see_keys_and_others_do_not(store: KeyStore, serving: Any) -> None:
    user, _ = store.create("ada", budget=100)
    operator, key = store.create("root", role="admin")
    client, _ = serving()
    ask(client, user)
    assert client.get("/v1/keys", headers={"authorization": f"Bearer {user}"}).status_code == 403
    shown = client.get("/v1/keys", headers={"authorization": f"Bearer {operator}"})
    assert shown.status_code == 200
    found = {one["name"]: one for one in shown.json()["data"]}
    assert found["ada"]["quotas"]["budget"] == 100
    assert found["ada"]["usage"]["requests"] == 1
    assert found["ada"]["left"]["requests"] is None
    own = client.get("/v1/key", headers={"authorization": f"Bearer {user}"}).json()["key"]
    assert own == found["ada"]
    assert own["left"]["budget"] == 100 - own["usage"]["spent"] < 100
    assert user not in shown.text
    assert key.digest not in shown.text
    metrics = client.get("/metrics", headers={"authorization": f"Bearer {user}"}).text
    assert 'llmk_key_requests_total{key="ada"} 1.0' in metrics
    assert 'llmk_key_budget_tokens_left{key="ada"}' in metrics
    assert "llmk_key_rate_left{" not in metrics, "it has no limits per minute"
    assert 'key="root"' not in metrics, "keys that were never used are left out"


@pytest.mark.skipif(not shutil.which("promtool"), reason="there is no promtool (Debian: prometheus)")
def test_prometheus_takes_the_metrics(store: KeyStore, serving: Any) -> None:
    secret, _ = store.create("ada", budget=1)
    client, _ = serving()
    assert [ask(client, secret).status_code for _ in range(2)] == [200, 429]
    metrics = client.get("/metrics", headers={"authorization": f"Bearer {secret}"}).text
    done = subprocess.run(["promtool", "check", "metrics"], input=metrics, capture_output=True, text=True, timeout=60)
    assert "llmk_key_requests_refused_total" in metrics
    assert done.returncode == 0, done.stdout + done.stderr


def test_usage_of_several_servers_adds_up(store: KeyStore) -> None:
    _, key = store.create("ada")
    for _ in range(2):
        store.add_usage({key.digest: Usage(spent=3, requests=1, prompt_tokens=2, output_tokens=1)})
    assert store.usage()[key.digest].spent == 6


def test_what_can_not_be_saved_is_kept(store: KeyStore, serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    secret, key = store.create("ada")
    client, ledger = serving()
    real, failures = KeyStore.add_usage, []

    def fails(self: KeyStore, used: Any) -> None:
        failures.append(used)
        raise ConfigError("the disk is full")

    monkeypatch.setattr(KeyStore, "add_usage", fails)
    assert ask(client, secret).status_code == 200
    wait_until(lambda: bool(failures))
    monkeypatch.setattr(KeyStore, "add_usage", real)
    (account,) = ledger.accounts()
    wait_until(lambda: store.usage().get(key.digest, Usage()).spent == account.spent > 0)


@pytest.mark.parametrize(
    "quotas", [{"role": "root"}, {"weight": 0.0}, {"budget": -1}, {"concurrency": -1}, {"requests_per_minute": 1 << 40}]
)
def test_quotas_that_make_no_sense_are_refused(store: KeyStore, quotas: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        store.create("ada", **quotas)
    assert not store.keys()


def test_names_are_unique_and_must_exist(store: KeyStore) -> None:
    store.create("ada")
    with pytest.raises(ConfigError, match="already"):
        store.create("ada")
    with pytest.raises(ConfigError, match="no key 'bob'"):
        store.update("bob", {})


def test_a_database_that_can_not_be_used_is_named() -> None:
    with pytest.raises(ConfigError, match=r"tenants\.database"):
        KeyStore("sqlite:////nowhere/at/all.sqlite")


@pytest.mark.slow
def test_a_database_that_another_process_writes_to_is_no_matter_of_rights(store: KeyStore, database: str) -> None:
    """After the ten seconds that SQLite waits."""
    with closing(sqlite3.connect(database.removeprefix("sqlite:///"))) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(ConfigError, match="locked") as raised:
            store.create("ada")
    assert "another process has been writing to it" in (raised.value.hint or "")
    store.create("ada")


def test_buckets_refill_evenly_and_a_clock_that_goes_back_gives_nothing() -> None:
    bucket = Bucket(60, left=0.0, at=100.0)
    bucket.refill(110.0)
    assert bucket.left == pytest.approx(10)
    bucket.refill(50.0)
    assert bucket.left == pytest.approx(10)
    assert bucket.seconds_until(60) == pytest.approx(50)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "0ms"), (0.0165, "17ms"), (1.5, "1.5s"), (360.0, "6m0s"), (59.9999, "1m0s")]
)
def test_durations_are_written_as_openai_does(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_ten_thousand_keys_take_little_time_per_request(store: KeyStore, serving: Any) -> None:
    """Finding the key, admitting the request, having it saved, and the headers: the median is far below 1 ms."""
    keys = [ApiKey(name=f"key {n}", digest=f"{n:064x}", requests_per_minute=10_000) for n in range(10_000)]
    with store._transaction() as connection:
        connection.execute(KEYS.insert(), [asdict(key) for key in keys])
    secret, _ = store.create("ada", requests_per_minute=10_000)
    _, ledger = serving()
    times = []
    for _ in range(200):
        start = time.perf_counter()
        account = ledger.find(digest_of(secret.encode()))
        assert account is not None
        assert account.admit(time.time()) is None
        ledger.touch(account)
        account.headers(time.time())
        account.leave()
        times.append(time.perf_counter() - start)
    assert sorted(times)[100] < 1e-3

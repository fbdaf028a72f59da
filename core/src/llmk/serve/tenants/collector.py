"""Metrics of keys."""

from __future__ import annotations

import time
from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from llmk.serve.tenants.account import Account
from llmk.serve.tenants.ledger import Ledger

MOST = 500
"""Keys that metrics show, those with the most tokens: each is a time series for every metric."""


class KeyCollector(Collector):
    """What each key has used, and what is left of its budget. Keys that were never used are left out."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def collect(self) -> Iterable[Metric]:
        """One metric family for each number."""
        used = [one for one in self._ledger.accounts() if one.totals[0] or one.refused]
        shown = sorted(used, key=lambda one: -sum(one.totals[1:]))[:MOST]
        requests = CounterMetricFamily("llmk_key_requests", "Requests of a key that were admitted.", labels=["key"])
        tokens = CounterMetricFamily(
            "llmk_key_tokens", "Tokens of a key, of prompts and outputs.", labels=["key", "kind"]
        )
        refused = CounterMetricFamily(
            "llmk_key_requests_refused", "Requests over a quota of their key.", labels=["key", "quota"]
        )
        running = GaugeMetricFamily("llmk_key_requests_running", "Requests of a key that are running.", labels=["key"])
        left = GaugeMetricFamily("llmk_key_budget_tokens_left", "Tokens left of a key's budget.", labels=["key"])
        rates = GaugeMetricFamily(
            "llmk_key_rate_left", "What a key may use now of its limits per minute.", labels=["key", "quota"]
        )
        for one in shown:
            name = one.key.name
            requests.add_metric([name], one.totals[0])
            tokens.add_metric([name, "prompt"], one.totals[1])
            tokens.add_metric([name, "output"], one.totals[2])
            running.add_metric([name], one.running)
            for quota, count in one.refused.items():
                refused.add_metric([name, quota], count)
            now = one.left(time.time())
            if (budget := now["budget"]) is not None:
                left.add_metric([name], budget)
            for quota in ("requests", "tokens"):
                if (rest := now[quota]) is not None:
                    rates.add_metric([name, quota], rest)
        return requests, tokens, refused, running, left, rates


def describe(account: Account) -> dict[str, object]:
    """A key with its quotas and usage, as routes show it. It has no part of the key itself."""
    key, (requests, prompt, output) = account.key, account.totals
    quotas = ("requests_per_minute", "tokens_per_minute", "concurrency", "weight", "budget")
    return {
        "name": key.name,
        "object": "api_key",
        "role": key.role,
        "tenant": key.tenant,
        "created_at": key.created_at,
        "expires_at": key.expires_at or None,
        "quotas": {name: getattr(key, name) for name in quotas},
        "usage": {
            "requests": requests,
            "prompt_tokens": prompt,
            "output_tokens": output,
            "spent": account.spent,
            "running": account.running,
            "refused": dict(account.refused),
        },
        "left": account.left(time.time()),
    }

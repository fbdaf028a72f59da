"""A key in use: what it has left."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from llmk.serve.tenants.api_key import ApiKey
from llmk.serve.tenants.key_store import Usage

MINUTE = 60.0
FULL = 1e18
SOON = 1.0
"""Seconds after which a client may try again where nothing says when."""


class Bucket:
    """A rate of ``limit`` a minute, all of which may come at once; 0: none. What is ``left`` grows evenly up to the
    limit, and is negative where more was used, which is known only afterwards."""

    def __init__(self, limit: int, left: float | None = None, at: float = 0.0) -> None:
        self.limit = limit
        self.left = float(limit) if left is None else min(left, float(limit))
        self._at = at

    @property
    def saved(self) -> float:
        """What is left, for the database: a limit that is set later starts full."""
        return self.left if self.limit else FULL

    def refill(self, now: float) -> None:
        """Adds what the time since the last call allows; nothing where the clock was set back."""
        self.left = min(float(self.limit), self.left + max(0.0, now - self._at) * self.limit / MINUTE)
        self._at = now

    def take(self, amount: int) -> None:
        """Takes some of it, more than there is too."""
        if self.limit:
            self.left -= amount

    def seconds_until(self, wanted: float) -> float:
        """Seconds until so much is left."""
        return max(0.0, (wanted - self.left) * MINUTE / self.limit) if self.limit else 0.0


@dataclass(frozen=True, slots=True)
class OverQuota:
    """Why a request is refused: which quota, and after how many seconds another may be served; 0: none ever."""

    quota: str
    message: str
    seconds: float


class Account:
    """What a ``key`` has used, and what it may use now. The event loop counts, and another thread saves."""

    def __init__(self, key: ApiKey, usage: Usage | None) -> None:
        used = usage or Usage()
        self.key = key
        self.spent = used.spent
        self.running = 0
        self.refused: dict[str, int] = {}
        self.totals = [used.requests, used.prompt_tokens, used.output_tokens]
        known = usage is not None
        self.requests = Bucket(key.requests_per_minute, used.requests_left if known else None, used.at)
        self.tokens = Bucket(key.tokens_per_minute, used.tokens_left if known else None, used.at)
        self._unsaved = [0, 0, 0]
        self._unspent = 0
        self._lock = threading.Lock()

    def change(self, key: ApiKey, spent: int) -> None:
        """Takes over what an operator changed, and what other servers spent."""
        if key.requests_per_minute != self.key.requests_per_minute:
            self.requests = Bucket(key.requests_per_minute)
        if key.tokens_per_minute != self.key.tokens_per_minute:
            self.tokens = Bucket(key.tokens_per_minute)
        self.key = key
        with self._lock:
            self.spent = spent + self._unspent

    def admit(self, now: float) -> OverQuota | None:
        """Counts a request that starts; or says why it may not."""
        refusal = self._refusal(now)
        if refusal is not None:
            self.refused[refusal.quota] = self.refused.get(refusal.quota, 0) + 1
            return refusal
        self.requests.take(1)
        self.running += 1
        self._count((1, 0, 0))
        return None

    def _refusal(self, now: float) -> OverQuota | None:
        key = self.key
        self.requests.refill(now)
        self.tokens.refill(now)
        if key.budget and self.spent >= key.budget:
            return OverQuota("budget", f"the key's budget of {key.budget} tokens is spent", 0.0)
        if key.concurrency and self.running >= key.concurrency:
            return OverQuota("concurrency", f"{self.running} requests of this key are running, its limit", SOON)
        if key.requests_per_minute and self.requests.left < 1:
            message = f"the key's limit of {key.requests_per_minute} requests per minute is reached"
            return OverQuota("requests", message, self.requests.seconds_until(1))
        if key.tokens_per_minute and self.tokens.left <= 0:
            message = f"the key's limit of {key.tokens_per_minute} tokens per minute is reached"
            return OverQuota("tokens", message, self.tokens.seconds_until(1))
        return None

    def leave(self) -> None:
        """A request has ended."""
        self.running -= 1

    def charge(self, prompt_tokens: int, output_tokens: int) -> None:
        """Counts the tokens of a request that has ended."""
        tokens = prompt_tokens + output_tokens
        self.tokens.take(tokens)
        self._count((0, prompt_tokens, output_tokens), tokens)

    def _count(self, more: Sequence[int], tokens: int = 0) -> None:
        with self._lock:
            self.spent += tokens
            self._unspent += tokens
            for index, one in enumerate(more):
                self.totals[index] += one
                self._unsaved[index] += one

    def unsaved(self) -> Usage:
        """What is to be added to the database, which counts as saved from now on."""
        with self._lock:
            (requests, prompt, output), spent = self._unsaved, self._unspent
            self._unsaved, self._unspent = [0, 0, 0], 0
        return Usage(spent, requests, prompt, output, self.requests.saved, self.tokens.saved, time.time())

    def restore(self, usage: Usage) -> None:
        """Takes back what could not be saved."""
        with self._lock:
            for index, more in enumerate((usage.requests, usage.prompt_tokens, usage.output_tokens)):
                self._unsaved[index] += more
            self._unspent += usage.spent

    def left(self, now: float) -> dict[str, int | None]:
        """What may be used now of each quota; ``None`` for what has no limit."""
        key = self.key
        found: dict[str, int | None] = {}
        for name, bucket in (("requests", self.requests), ("tokens", self.tokens)):
            bucket.refill(now)
            found[name] = max(0, math.floor(bucket.left)) if bucket.limit else None
        found["concurrency"] = max(0, key.concurrency - self.running) if key.concurrency else None
        found["budget"] = max(0, key.budget - self.spent) if key.budget else None
        return found

    def headers(self, now: float) -> dict[str, str]:
        """The rates as OpenAI's headers say them; none for what has no limit."""
        found = {}
        for name, bucket in (("requests", self.requests), ("tokens", self.tokens)):
            if bucket.limit:
                bucket.refill(now)
                found[f"x-ratelimit-limit-{name}"] = str(bucket.limit)
                found[f"x-ratelimit-remaining-{name}"] = str(max(0, math.floor(bucket.left)))
                found[f"x-ratelimit-reset-{name}"] = duration(bucket.seconds_until(bucket.limit))
        return found


def duration(seconds: float) -> str:
    """As OpenAI writes them: ``17ms``, ``1.5s``, ``6m0s``."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(round(seconds, 3), 60)
    return f"{int(minutes)}m{rest:g}s" if minutes else f"{rest:g}s"

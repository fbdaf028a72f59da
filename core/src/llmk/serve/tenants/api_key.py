"""An API key: who it is for, and what it allows."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

TENANT_DIGITS = 16
ROLES = ("user", "admin")
_PREFIX = "sk-llmk-"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """A key that the database has; the key itself is not kept, only its ``digest``. 0 means no limit.

    Attributes:

    requests_per_minute, tokens_per_minute: sustained rates; as much may come at once. concurrency: requests at a time.
    weight: its share of the engine; the default is 1. budget: tokens in all, until the operator resets what was spent.
    expires_at: seconds since 1970; 0: never.
    """

    name: str
    digest: str
    role: str = "user"
    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    concurrency: int = 0
    weight: float = 1.0
    budget: int = 0
    created_at: int = 0
    expires_at: int = 0

    @property
    def tenant(self) -> str:
        """The name under which the engine and the storage know it."""
        return self.digest[:TENANT_DIGITS]


def new_secret() -> str:
    """A random key of 256 bits."""
    return _PREFIX + secrets.token_urlsafe(32)


def digest_of(secret: bytes) -> str:
    """SHA-256, in hexadecimal digits."""
    return hashlib.sha256(secret).hexdigest()

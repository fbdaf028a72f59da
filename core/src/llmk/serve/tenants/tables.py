"""The tables of keys. Imports SQLAlchemy, so only what uses the database imports this."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Float, Integer, MetaData, String, Table

METADATA = MetaData()

KEYS = Table(
    "llmk_keys",
    METADATA,
    Column("name", String(128), primary_key=True),
    Column("digest", String(64), nullable=False, unique=True),
    Column("role", String(16), nullable=False),
    Column("requests_per_minute", Integer, nullable=False),
    Column("tokens_per_minute", BigInteger, nullable=False),
    Column("concurrency", Integer, nullable=False),
    Column("weight", Float, nullable=False),
    Column("budget", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
)

USAGE = Table(
    "llmk_key_usage",
    METADATA,
    Column("digest", String(64), primary_key=True),
    Column("spent", BigInteger, nullable=False),
    Column("requests", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("requests_left", Float, nullable=False),
    Column("tokens_left", Float, nullable=False),
    Column("at", Float, nullable=False, index=True),
)
"""``spent`` counts for the budget, and is what an operator resets; ``requests_left`` and ``tokens_left`` are those of
the rates, at the time ``at``."""

CHANGES = Table("llmk_key_changes", METADATA, Column("number", Integer, primary_key=True, autoincrement=True))
"""A row for each change of keys: servers read them all again where the last number is another than before."""

"""The tables of the database. Imports SQLAlchemy, so only what uses the database imports this."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    UniqueConstraint,
)

METADATA = MetaData()
MOST_ID, MOST_MODEL = 96, 255
"""Longest ids and names of models, in characters: databases limit the size of keys."""
_KEY = BigInteger().with_variant(Integer, "sqlite")
_DATA = LargeBinary(length=(1 << 32) - 1)

OBJECTS = Table(
    "llmk_objects",
    METADATA,
    Column("position", _KEY, primary_key=True, autoincrement=True),
    Column("id", String(MOST_ID), nullable=False),
    Column("model", String(MOST_MODEL), nullable=False),
    Column("tenant", String(64), nullable=False),
    Column("kind", String(32), nullable=False),
    Column("parent", String(MOST_ID), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("num_bytes", BigInteger, nullable=False),
    Column("data", _DATA, nullable=False),
    UniqueConstraint("model", "id"),
    Index("llmk_objects_by_parent", "model", "tenant", "parent", "kind", "position"),
    Index("llmk_objects_by_size", "model", "tenant", "num_bytes"),
    Index("llmk_objects_by_expiry", "expires_at"),
)
"""One row per object. ``position`` is the order of creation; ``num_bytes`` counts for the limit of the tenant, with
what is stored elsewhere, such as a file's content; times are in seconds since 1970; ``data`` is JSON."""

BATCH_REQUESTS = Table(
    "llmk_batch_requests",
    METADATA,
    Column("batch", String(MOST_ID), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("custom_id", String(512), nullable=False),
    Column("start", BigInteger, nullable=False),
    Column("size", Integer, nullable=False),
    Column("failed", Boolean),
    Column("result", _DATA),
)
"""The requests of unfinished batches: line ``number`` of the input file, its bytes, and its line in the output or error
file once it has ended."""

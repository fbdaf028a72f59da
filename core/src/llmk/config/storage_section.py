"""The section of what the server stores for its clients."""

from __future__ import annotations

from pydantic import Field

from llmk.config.section import Count, Section, Size, Timeout


class StorageSection(Section):
    """What clients store: responses, conversations, files and batches. Needs llmk-core[storage]."""

    database: str = Field(
        default="",
        description="URL of the database (SQLAlchemy's). Empty: SQLite in the folder. 'memory': until the server ends. "
        "'none': clients can store nothing.",
    )
    folder: str = Field(
        default="",
        description="Folder of the SQLite database and of files. Empty: llmk/SERVED_NAME under $XDG_STATE_HOME or "
        "~/.local/state. Servers that share a database must share it.",
    )
    seconds: Timeout = Field(default=2_592_000.0, description="Seconds for which an object is kept. Default: 30 days.")
    objects_per_client: Count = Field(
        default=100_000, description="Objects that one client (API key, else address) may store; more are refused."
    )
    bytes_per_client: Count = Field(
        default=4 << 30, description="Bytes that one client may store; more are refused with 413."
    )
    file_bytes: Count = Field(default=200 << 20, description="Largest file that a client may upload, in bytes.")
    uploads_per_client: Count = Field(
        default=8, description="Files that one client may upload at the same time; more are refused with 429."
    )
    batch_requests: Count = Field(default=50_000, description="Requests of a batch.")
    batches_per_client: Count = Field(
        default=100, description="Unfinished batches of one client; more are refused with 429."
    )
    batch_concurrency: Size = Field(
        default=0,
        description="Requests of batches that run at once while no other requests do. 0: a quarter of "
        "scheduler.max_num_seqs.",
    )

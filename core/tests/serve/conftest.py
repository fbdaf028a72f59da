"""A server over a scripted engine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

sys.path.insert(0, str(Path(__file__).parent))

from scripted import AngleReasoning, BracketTools, InlineWorkers, ScriptedEngine

from llmk.config.schema import ServerSection
from llmk.config.storage_section import StorageSection
from llmk.serve.app import create_app
from llmk.serve.generation.parsing import Dialect, ParserKind
from llmk.serve.service import Service

DIALECT = Dialect(ParserKind("test.angle", AngleReasoning), ParserKind("test.bracket", BracketTools))


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
def make_service(engine: ScriptedEngine) -> Callable[..., Service]:
    def make(dialect: Dialect = DIALECT, routes: Any = None, **server: Any) -> Service:
        workers: Any = InlineWorkers(engine, dialect, routes=routes)
        storage = StorageSection(database="memory")
        return Service(engine, dialect, ServerSection(**server), workers, storage=storage, routes=routes)  # type: ignore[arg-type]

    return make


@pytest.fixture
def serve(make_service: Callable[..., Service]) -> Iterator[Callable[..., TestClient]]:
    """Makes a client of a server with the given ``[server]`` section."""
    with ExitStack() as stack:
        yield lambda dialect=DIALECT, **server: stack.enter_context(
            TestClient(
                create_app(make_service(dialect, **server)),
                base_url="http://localhost",
                raise_server_exceptions=False,
            )
        )


@pytest.fixture
def client(serve: Callable[..., TestClient]) -> TestClient:
    return serve()

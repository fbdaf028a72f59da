"""Pages for browsers."""

from __future__ import annotations

import gzip
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from llmk.api import PageSpec
from llmk.serve.app import create_app
from llmk.serve.http.pages import POLICY, load_pages
from llmk.serve.service import Service

HTML = {"accept": "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"}
FILES = {"index.html": "<p>A page", "app.js": "let a = 1;\n" * 100, "data.bin": "x"}


class Registered:
    """As the registry has it."""

    def __init__(self, *specs: PageSpec) -> None:
        self._specs = specs

    def of(self, kind: type) -> list[Any]:
        return [type("Found", (), {"spec": spec}) for spec in self._specs if isinstance(spec, kind)]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with folders of files."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for folder in ("page", "other", "empty"):
        place = tmp_path / "acme_pages" / folder
        place.mkdir(parents=True)
        for name, text in FILES.items() if folder != "empty" else ():
            (place / name).write_text(text)
    (tmp_path / "acme_pages" / "__init__.py").write_text("raise ImportError('it is not imported')")
    return tmp_path


def spec(name: str = "page", path: str = "/", **more: Any) -> PageSpec:
    return PageSpec(id=f"acme.{name}", path=path, package="acme_pages", folder=more.get("folder", name))


@pytest.fixture
def client(package: Path, make_service: Callable[..., Service]) -> Iterator[TestClient]:
    service = make_service(api_keys=["secret"])
    service.pages = load_pages(Registered(spec(), spec("other", "/version")))  # type: ignore[arg-type]
    with TestClient(create_app(service), base_url="http://localhost") as client:
        yield client


@pytest.mark.hook("llmk_pages")
def test_browsers_get_the_page_without_a_key(client: TestClient) -> None:
    answer = client.get("/", headers=HTML)
    assert (answer.status_code, answer.text) == (200, FILES["index.html"])
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    script = client.get("/pages/acme.page/app.js")
    assert (script.status_code, script.text) == (200, FILES["app.js"])
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"
    for each in (answer, script):
        assert each.headers["content-security-policy"] == POLICY
        assert each.headers["x-content-type-options"] == "nosniff"
        assert each.headers["vary"] == "accept, accept-encoding"


def test_nothing_else_is_open(client: TestClient) -> None:
    for path in ("/v1/models", "/metrics", "/v1/plan", "/pages", "/pages/acme.page/", "/pages/acme.page/none.js"):
        assert client.get(path, headers=HTML).status_code == 401, path
    assert client.post("/", headers=HTML, json={}).status_code == 401
    assert client.get("/pages/acme.page/..%2f__init__.py").status_code == 401
    assert client.get("/pages/acme.page/../__init__.py").status_code == 401


@pytest.mark.parametrize("accept", ["*/*", "application/json", ""])
def test_other_clients_get_the_route(client: TestClient, accept: str) -> None:
    key = {"authorization": "Bearer secret", "accept": accept}
    assert client.get("/version", headers=key).json()["version"]
    assert client.get("/version", headers={**key, **HTML}).text == FILES["index.html"]
    assert client.get("/", headers=key).status_code == 404


def test_a_file_is_sent_once_and_compressed(client: TestClient) -> None:
    plain = client.get("/pages/acme.page/app.js", headers={"accept-encoding": "identity"})
    packed = client.get("/pages/acme.page/app.js", headers={"accept-encoding": "br;q=1, gzip;q=0.8"})
    assert (plain.headers.get("content-encoding"), packed.headers["content-encoding"]) == (None, "gzip")
    assert plain.text == packed.text
    assert int(packed.headers["content-length"]) < len(FILES["app.js"]) / 4
    again = client.get("/pages/acme.page/app.js", headers={"if-none-match": plain.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    other = client.get("/pages/acme.page/index.html", headers={"if-none-match": plain.headers["etag"]})
    assert other.status_code == 200
    head = client.head("/pages/acme.page/app.js", headers={"accept-encoding": "identity"})
    assert (head.content, head.headers["content-length"]) == (b"", str(len(FILES["app.js"])))
    small = client.get("/pages/acme.page/data.bin", headers={"accept-encoding": "gzip"})
    assert (small.headers.get("content-encoding"), small.headers["content-type"]) == (None, "application/octet-stream")


def test_hosts_are_checked_first(package: Path, make_service: Callable[..., Service]) -> None:
    service = make_service()
    service.pages = load_pages(Registered(spec()))  # type: ignore[arg-type]
    with TestClient(create_app(service), base_url="http://evil.example") as client:
        assert client.get("/", headers=HTML).status_code == 421


def test_a_page_that_lacks_something_is_left_out(package: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        pages = load_pages(Registered(spec(), spec("other"), spec("empty", "/e")))  # type: ignore[arg-type]
    assert [page.spec.id for page in pages] == ["acme.page"]
    assert [record.getMessage() for record in caplog.records] == [
        "the page acme.other is not served: acme.page has /",
        "the page acme.empty is not served: acme_pages has no empty/index.html",
    ]
    (package / "acme_pages/page/app.js").write_bytes(gzip.compress(b"x"))
    assert load_pages(Registered(spec()))[0].files["app.js"].compressed is None  # type: ignore[arg-type]

"""Pages for browsers: files of plugins, which are read at the start and served as they are.

A page may load and call this server only. Every response says so to the browser, so that neither a mistake of a page
nor what a model writes can send data elsewhere, or be run as a script.
"""

from __future__ import annotations

import gzip
import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from llmk.api import PageSpec
from llmk.config.package_folder import package_folder

if TYPE_CHECKING:
    from llmk.kernel.registry import Registry

logger = logging.getLogger(__name__)

INDEX = "index.html"
FOLDER = "/pages/"
MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}
POLICY = "; ".join(
    (
        *("default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' data:", "font-src 'self'"),
        *("connect-src 'self'", "manifest-src 'self'", "form-action 'none'", "base-uri 'none'"),
        *("frame-ancestors 'none'", "require-trusted-types-for 'script'", "trusted-types 'none'"),
    )
)
"""With trusted types, browsers also refuse to parse a string as HTML, as ``innerHTML`` does."""
HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "vary": "accept, accept-encoding",
    "x-content-type-options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file as it is sent, and compressed, if that makes it smaller."""

    media_type: str
    tag: str
    plain: bytes
    compressed: bytes | None


@dataclass(frozen=True, slots=True)
class LoadedPage:
    """A page, with its files by name."""

    spec: PageSpec
    files: Mapping[str, PageFile]


def load_pages(registry: Registry) -> list[LoadedPage]:
    """The pages of all plugins. One without ``index.html``, or for a path that another has, is left out with a
    warning."""
    pages: dict[str, LoadedPage] = {}
    for spec in (found.spec for found in registry.of(PageSpec)):
        page = load_page(spec)
        if spec.path in pages:
            logger.warning("the page %s is not served: %s has %s", spec.id, pages[spec.path].spec.id, spec.path)
        elif INDEX not in page.files:
            logger.warning("the page %s is not served: %s has no %s/%s", spec.id, spec.package, spec.folder, INDEX)
        else:
            pages[spec.path] = page
    return list(pages.values())


def load_page(spec: PageSpec) -> LoadedPage:
    """Reads the files of a page, whose folder exists."""
    folder = package_folder(spec.package, spec.folder)
    assert folder is not None, "the registry leaves such specs out"
    return LoadedPage(spec, dict(_files(folder)))


def _files(folder: Path) -> Iterator[tuple[str, PageFile]]:
    for path in sorted(folder.iterdir()):
        if path.is_file():
            plain = path.read_bytes()
            packed = gzip.compress(plain, mtime=0)
            tag = f'"{hashlib.sha256(plain).hexdigest()[:32]}"'
            media_type = MEDIA_TYPES.get(path.suffix, "application/octet-stream")
            yield path.name, PageFile(media_type, tag, plain, packed if len(packed) < len(plain) else None)


class Pages:
    """Serves the files of ``pages``, also without an API key: they are the same for everyone. Where a page and a route
    have the same path, clients that accept HTML, as browsers do, get the page."""

    def __init__(self, app: ASGIApp, pages: Sequence[LoadedPage]) -> None:
        self._app = app
        self._files = {f"{FOLDER}{page.spec.id}/{name}": file for page in pages for name, file in page.files.items()}
        self._indexes = {page.spec.path: page.files[INDEX] for page in pages}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        found = self._found(scope) if scope["type"] == "http" and scope["method"] in ("GET", "HEAD") else None
        if found is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = SimpleNamespace(path=scope["path"])  # for the access log and the metrics
        await _response(found, Headers(scope=scope), scope["method"])(scope, receive, send)

    def _found(self, scope: Scope) -> PageFile | None:
        if (file := self._files.get(scope["path"])) is not None:
            return file
        index = self._indexes.get(scope["path"])
        return index if index and "text/html" in Headers(scope=scope).get("accept", "").lower() else None


def _response(file: PageFile, headers: Headers, method: str) -> Response:
    more = {**HEADERS, "etag": file.tag}
    if file.tag in headers.get("if-none-match", ""):
        return Response(status_code=304, headers=more)
    accepted = {coding.partition(";")[0].strip() for coding in headers.get("accept-encoding", "").lower().split(",")}
    body = file.plain
    if file.compressed is not None and "gzip" in accepted:
        body, more["content-encoding"] = file.compressed, "gzip"
    if method == "HEAD":
        body, more["content-length"] = b"", str(len(body))
    return Response(body, headers=more, media_type=file.media_type)

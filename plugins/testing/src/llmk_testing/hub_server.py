"""A server that speaks the protocol of the Hugging Face hub, for ``huggingface_hub`` to talk to: repositories with
revisions, listings, files small and large (which are redirected), ranges, tokens, and the faults of real ones."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

LARGE = 20_000
"""Files of more bytes are stored as large ones are: named by their SHA-256, and served after a redirect."""
_PIECE = 1 << 16


@dataclass
class Fault:
    """What happens to requests whose path matches, ``times`` times. ``status``: that answer; 0: the connection ends
    after ``after`` bytes of the body, by a reset with ``reset``, after ``silence`` seconds."""

    path: str
    times: int = 1
    status: int = 0
    after: int = 0
    reset: bool = False
    silence: float = 0


@dataclass
class Repository:
    """``revisions`` are files by name, by branch, tag or commit. ``token``: who has it, has access; ``gated``: others
    see the listing. ``claimed`` are sizes that the listing gives, where they are not the real ones."""

    revisions: dict[str, dict[str, bytes]]
    token: str = ""
    gated: bool = False
    claimed: dict[str, int] = field(default_factory=dict)

    def commit(self, revision: str) -> str:
        """The commit of a revision, or of one that is named by its commit; empty: there is none."""
        for name, files in self.revisions.items():
            content = {path: _etag(data) for path, data in sorted(files.items())}
            commit = hashlib.sha1(json.dumps([name, content]).encode(), usedforsecurity=False).hexdigest()
            if revision in (name, commit):
                return commit
        return ""

    def files(self, revision: str) -> dict[str, bytes]:
        """The files of a revision, or of a commit."""
        return next(files for name, files in self.revisions.items() if self.commit(name) == self.commit(revision))


class HubServer(ThreadingHTTPServer):
    """``requests`` are the methods, paths and ranges of all requests so far."""

    daemon_threads = True

    def __init__(self, repositories: Mapping[str, Repository]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories = dict(repositories)
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str, str]] = []
        self.sent: Counter[str] = Counter()
        """Bytes of bodies that were sent so far, by path."""
        self.tokens: set[str] = set()
        """If not empty, the tokens that there are: others are refused for any model."""
        self.knows_ranges = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def cdn(self) -> str:
        """Where large files are: another host by its name, which is to get no token."""
        return f"http://localhost:{self.server_address[1]}"

    def bodies(self, path: str) -> list[str]:
        """The ranges of requests for bodies whose path matches."""
        return [asked for method, at, asked in self.requests if method == "GET" and re.search(path, at)]

    def content(self, name: str, etag: str) -> bytes:
        """A large file of a repository."""
        revisions = self.repositories[name].revisions.values()
        return next(data for files in revisions for data in files.values() if _etag(data) == etag)

    def fault(self, path: str) -> Fault | None:
        """The next fault of a path, which is then over once more."""
        found = next((each for each in self.faults if each.times and re.search(each.path, path)), None)
        if found:
            found.times -= 1
        return found

    def end(self) -> None:
        """Listens no more."""
        self.shutdown()
        self.server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that go away are no errors here."""


@contextmanager
def serving(repositories: Mapping[str, Repository]) -> Iterator[HubServer]:
    """A running server."""
    server = HubServer(repositories)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.end()


def _etag(data: bytes) -> str:
    if len(data) > LARGE:
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    server: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None: ...

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append((self.command, path, self.headers.get("Range", "")))
        fault = self.server.fault(path)
        given = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if given and self.server.tokens and given not in self.server.tokens:
            message = "Invalid credentials in Authorization header"
            self._send(401, json.dumps({"error": message}).encode(), {"X-Error-Message": message})
        elif fault and fault.status:
            self._send(fault.status, b"", {"Retry-After": "0"})
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree|refs)(?:/(.+))?)?", path):
            self._api(found[1], found[2], found[3] or "main")
        elif found := re.fullmatch(r"/cdn/([^/]+/[^/]+)/(\w+)", path):
            self._cdn(found[1], found[2], fault)
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/(refs/pr/\d+|[^/]+)/(.+)", path):
            self._resolve(found[1], found[2], found[3], fault)
        else:
            self._send(404, b"{}")

    def _api(self, name: str, kind: str | None, revision: str) -> None:
        repository = self._repository(name, listing=True)
        if repository is None:
            return
        if kind == "refs":
            branches = [{"name": each, "ref": each, "targetCommit": "0"} for each in repository.revisions]
            self._json({"branches": branches, "tags": [], "converts": []})
            return
        commit = repository.commit(revision)
        if not commit:
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            return
        files = repository.files(revision)
        if kind == "tree":
            self._json([{"type": "file", "path": path} | self._facts(repository, path, files) for path in files])
            return
        siblings = []
        for path in files:
            facts = self._facts(repository, path, files)
            lfs = {"sha256": facts["lfs"]["oid"], **facts["lfs"]} if "lfs" in facts else None
            siblings.append({"rfilename": path, "size": facts["size"], "blobId": facts["oid"], "lfs": lfs})
        self._json({"id": name, "modelId": name, "sha": commit, "siblings": siblings, "tags": []})

    def _facts(self, repository: Repository, path: str, files: Mapping[str, bytes]) -> dict[str, Any]:
        data = files[path]
        size, etag = repository.claimed.get(path, len(data)), _etag(data)
        if len(data) <= LARGE:
            return {"size": size, "oid": etag}
        return {"size": size, "oid": "0" * 40, "lfs": {"oid": etag, "size": size, "pointerSize": 130}}

    def _resolve(self, name: str, revision: str, path: str, fault: Fault | None) -> None:
        repository = self._repository(name, listing=False)
        if repository is None:
            return
        commit = repository.commit(revision)
        data = repository.files(revision).get(path) if commit else None
        if data is None:
            code = "EntryNotFound" if commit else "RevisionNotFound"
            self._send(404, b"", {"X-Error-Code": code, "X-Repo-Commit": commit})
            return
        etag = _etag(data)
        headers = {"X-Repo-Commit": commit, "ETag": f'"{etag}"'}
        if len(data) > LARGE:
            linked = {"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(len(data))}
            self._send(302, b"", {**headers, **linked, "Location": f"{self.server.cdn}/cdn/{name}/{etag}"})
        else:
            self._send_range(data, headers, fault)

    def _cdn(self, name: str, etag: str, fault: Fault | None) -> None:
        self._send_range(self.server.content(name, etag), {"ETag": f'"{etag}"'}, fault)

    def _repository(self, name: str, *, listing: bool) -> Repository | None:
        """The repository, or ``None`` after it was refused."""
        found = self.server.repositories.get(name)
        given = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if found is None or (found.token and not found.gated and given != found.token):
            headers = {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}
            self._send(404 if given else 401, b"{}", headers)
            return None
        if found.gated and not listing and given != found.token:
            headers = {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to it is restricted"}
            self._send(403 if given else 401, b"{}", headers)
            return None
        return found

    def _send_range(self, data: bytes, headers: Mapping[str, str], fault: Fault | None) -> None:
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not found or not self.server.knows_ranges:
            self._send(200, data, {**headers, "Accept-Ranges": "bytes"}, fault)
            return
        start, stop = int(found[1]), min(int(found[2] or len(data) - 1), len(data) - 1) + 1
        place = {"Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"}
        self._send(206, data[start:stop], {**headers, **place}, fault)

    def _json(self, data: object) -> None:
        self._send(200, json.dumps(data).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, data: bytes, headers: Mapping[str, str] = {}, fault: Fault | None = None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "HEAD":
            return
        body = data if fault is None else data[: fault.after]
        for at in range(0, len(body), _PIECE):
            piece = body[at : at + _PIECE]
            self.wfile.write(piece)
            self.server.sent[urlsplit(self.path).path] += len(piece)
        if fault is None:
            return
        self.wfile.flush()
        time.sleep(fault.silence)
        if fault.reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        self.close_connection = True

"""Examples of models in an OCI registry for the conformance kit: a registry of this process, and what is in it."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from llmk_testing.model_sources import SourceExample, toy_checkpoint

from .plover_oci import MANIFESTS, TITLE
from .plover_specs import parse_oci


def digest_of(content: bytes) -> str:
    """As registries name contents."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


class Contents:
    """Blobs by digest, and manifests by repository and by tag or digest."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[tuple[str, str], bytes] = {}

    def push(self, repository: str, tag: str, files: Mapping[str, bytes]) -> str:
        """As ``oras push`` does. Returns the manifest's digest."""
        layers = []
        for name, content in files.items():
            digest = digest_of(content)
            self.blobs[digest] = content
            layer = {"mediaType": "application/octet-stream", "digest": digest, "size": len(content)}
            layers.append({**layer, "annotations": {TITLE: name}})
        manifest = json.dumps({"schemaVersion": 2, "mediaType": MANIFESTS[0], "layers": layers}).encode()
        self.manifests[repository, tag] = self.manifests[repository, digest_of(manifest)] = manifest
        return digest_of(manifest)

    def answer(self, path: str) -> bytes | None:
        """What a path of the registry holds."""
        repository, kind, version = path.removeprefix("/v2/").rsplit("/", 2)
        if kind == "blobs":
            return self.blobs.get(version)
        if kind == "tags":
            tags = [tag for name, tag in self.manifests if name == repository and not tag.startswith("sha256:")]
            return json.dumps({"name": repository, "tags": tags}).encode() if tags else None
        return self.manifests.get((repository, version))


@contextmanager
def served(contents: Contents) -> Iterator[ThreadingHTTPServer]:
    """The registry, on a port of its own."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = contents.answer(self.path)
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Length", str(len(found or b"")))
            self.end_headers()
            self.wfile.write(found or b"")

        def log_message(self, *args: object) -> None:
            """Nothing is printed."""

        def handle(self) -> None:
            try:
                super().handle()
            except ConnectionError:
                """The client had enough."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def filled(folder: Path) -> Iterator[SourceExample]:
    """A registry with two versions of a model, an older one that has a digest alone, and one whose name starts alike.
    The registry is in memory, so that the folder stays empty."""
    contents = Contents()

    def publish(name: str, files: Mapping[str, bytes]) -> None:
        """Under a tag: what a digest names never changes."""
        repository, tag, digest = parse_oci(name) or ("", "", "")
        if digest:
            raise ValueError(f"{name} can't have other files")
        contents.push(repository, tag, files)

    def forge(name: str, files: Mapping[str, bytes]) -> None:
        """As a registry that sends another manifest than it is asked for."""
        repository, tag, digest = parse_oci(name) or ("", "", "")
        if not digest:
            raise ValueError(f"{name} may have any files")
        contents.manifests[repository, digest] = contents.manifests[repository, contents.push(repository, tag, files)]

    def damage() -> None:
        """As a disk of the registry that lost bits of a file."""
        digest = digest_of(toy["model.safetensors"])
        contents.blobs[digest] = contents.blobs[digest][:-1] + b"\xa5"

    toy = toy_checkpoint()
    older = {**toy, "generation_config.json": b'{"temperature": 0.5}'}
    digest = contents.push("team/toy", "latest", older)
    models = {
        "oci:team/toy:v1": {**toy, "generation_config.json": b"{}"},
        f"oci:team/toy@{digest}": older,
        f"oci:team/toy:latest@{digest}": older,
        "oci:team/toy-large": {**toy, "generation_config.json": b'{"top_k": 3}'},
    }
    for name, files in {"oci:team/toy": toy, **models}.items():
        if "@" not in name:
            publish(name, files)
    with served(contents) as server:
        options = {"registry": f"http://127.0.0.1:{server.server_port}"}

        def away() -> None:
            server.shutdown()
            server.server_close()

        yield SourceExample("oci:team/toy", "oci:team/tow", options, models, damage, publish, away, forge)

"""Examples for the conformance kit: a server that speaks as much of S3 as models need, with two objects to a page."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs, quote_plus, unquote, urlsplit
from xml.sax.saxutils import escape

from llmk_testing.model_sources import SourceExample, toy_checkpoint

PAGE = 2


class Objects:
    """What the buckets have: bytes and the entity tag, by bucket and key."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[bytes, str]] = {}

    def put(self, path: str, data: bytes) -> None:
        """Tags of objects that are uploaded in parts are digests of digests, those of encrypted ones others."""
        tag = hashlib.md5(data).hexdigest()
        if path.endswith("tokenizer_config.json") or "/toy-2/" in path:
            tag = hashlib.md5(bytes.fromhex(tag)).hexdigest() + "-1"
        elif is_encrypted(path):
            tag = hashlib.md5(b"encrypted" + data).hexdigest()
        self.found[path] = data, f'"{tag}"'

    def page(self, bucket: str, query: Mapping[str, list[str]]) -> str | None:
        """A page of the list; ``None``: there is no such bucket."""
        if not any(path.startswith(f"{bucket}/") for path in self.found):
            return None
        start = f"{bucket}/{query.get('prefix', [''])[0]}"
        paths = sorted(path for path in self.found if path.startswith(start))
        first = int(query.get("continuation-token", ["0"])[0])
        rest = paths[first + PAGE :]
        text = '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        text += f"<IsTruncated>{'true' if rest else 'false'}</IsTruncated>"
        text += f"<NextContinuationToken>{first + PAGE}</NextContinuationToken>" if rest else ""
        for path in paths[first : first + PAGE]:
            data, tag = self.found[path]
            key = quote_plus(path.removeprefix(f"{bucket}/"), safe="/")
            text += f"<Contents><Key>{key}</Key><Size>{len(data)}</Size><ETag>{escape(tag)}</ETag></Contents>"
        return text + "</ListBucketResult>"


def is_encrypted(path: str) -> bool:
    """Whether the bucket encrypts the object with a key of the owner's."""
    return path.endswith("/config.json")


def server(objects: Objects) -> ThreadingHTTPServer:
    """Serves the objects on a port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            path = unquote(url.path).removeprefix("/")
            if "/" not in path:
                page = objects.page(path, parse_qs(url.query))
                self.answer(404 if page is None else 200, (page or "").encode())
                return
            data, tag = objects.found.get(path, (b"", ""))
            if not tag:
                self.answer(404, b"")
            elif self.headers.get("If-Match", tag) != tag:
                self.answer(412, b"")
            elif wanted := self.headers.get("Range"):
                first, last = wanted.removeprefix("bytes=").split("-")
                self.answer(206, data[int(first) : int(last) + 1])
            else:
                self.answer(200, data)

        def answer(self, code: int, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            if is_encrypted(self.path):
                self.send_header("x-amz-server-side-encryption", "aws:kms")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Nothing is printed."""

    return ThreadingHTTPServer(("127.0.0.1", 0), Handler)


@contextmanager
def filled(folder: Path) -> Iterator[SourceExample]:
    """Buckets with models whose names start alike, a folder's marker, and objects that were uploaded in parts."""
    objects = Objects()
    serving = server(objects)
    thread = Thread(target=serving.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    ended: list[bool] = []

    def publish(name: str, files: Mapping[str, bytes]) -> None:
        path = name.removeprefix("s3://")
        if not all(len(f"{path}/{file}".encode()) <= 1024 and file for file in files):
            raise ValueError("S3 has keys of up to 1,024 bytes")
        for old in [each for each in objects.found if each.startswith(f"{path}/")]:
            del objects.found[old]
        objects.put(f"{path}/", b"")
        for file, data in files.items():
            objects.put(f"{path}/{file}", data)

    def damage() -> None:
        """As a disk does that forgets: the list is what it was."""
        path = next(path for path in objects.found if path.startswith("models/toy/") and path.endswith(".safetensors"))
        data, tag = objects.found[path]
        objects.found[path] = data[:-1] + bytes([data[-1] ^ 1]), tag

    def away() -> None:
        if not ended:
            ended.append(True)
            serving.shutdown()
            serving.server_close()

    toy = toy_checkpoint()
    models = {
        "s3://models/toy": toy,
        "s3://models/toy-2": {**toy, "generation_config.json": b"{}"},
        "s3://models.of-others/a/b/toy": {**toy, "notes/read me+100%.txt": b"other"},
    }
    for name, files in models.items():
        publish(name, files)
    options = {"s3_endpoint": f"http://127.0.0.1:{serving.server_port}"}
    try:
        yield SourceExample(
            "s3://models/toy",
            "s3://models/to",
            options,
            models,
            damage=damage,
            publish=publish,
            away=away,
        )
    finally:
        away()
        thread.join()

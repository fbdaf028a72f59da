"""What stat loggers send is in the file, as it was sent."""

from __future__ import annotations

import socket
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from llmk_testing.stat_receivers import connections, datagrams, posts


def send_datagrams(options: Mapping[str, Any]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for data in (b"one", b"two\n"):
            sender.sendto(data, (options["host"], options["port"]))


def send_connections(options: Mapping[str, Any]) -> None:
    for data in (b"one\n", b"two"):
        with socket.create_connection((options["host"], options["port"])) as link:
            link.sendall(data)


def send_posts(options: Mapping[str, Any]) -> None:
    for method, data in (("POST", b"one"), ("PUT", b"")):
        headers = {"Content-Type": "text/plain", "Authorization": "Token t"}
        request = urllib.request.Request(options["url"], data, headers, method=method)
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.status == 200


POSTED = b"""POST /in
authorization: Token t
content-type: text/plain
one
PUT /in
authorization: Token t
content-type: text/plain

"""


@pytest.mark.parametrize(
    ("receiver", "send", "file", "expected"),
    [
        (datagrams(), send_datagrams, "datagrams", b"one\ntwo\n\n"),
        (connections(), send_connections, "received", b"one\ntwo"),
        (posts(path="/in"), send_posts, "posts", POSTED),
    ],
    ids=["datagrams", "connections", "posts"],
)
def test_what_is_sent_is_in_the_file(
    tmp_path: Path, receiver: Any, send: Callable[[Mapping[str, Any]], None], file: str, expected: bytes
) -> None:
    with receiver(tmp_path, 0, "takes") as options:
        send(options)
        end = time.monotonic() + 10
        while (tmp_path / file).read_bytes() != expected and time.monotonic() < end:
            time.sleep(0.01)
    assert (tmp_path / file).read_bytes() == expected


def test_a_request_outside_of_the_address_is_recorded_as_that(tmp_path: Path) -> None:
    with posts()(tmp_path, 0, "takes") as options:
        parts = urllib.parse.urlsplit(options["url"])
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://{parts.netloc}/write", b"one", timeout=10)
    assert (tmp_path / "posts").read_bytes().startswith(b"404 outside of /under/a/path: POST /write\n")


def test_what_is_refused_is_in_no_file(tmp_path: Path) -> None:
    with posts()(tmp_path, 0, "refuses") as options, pytest.raises(urllib.error.HTTPError, match="503"):
        urllib.request.urlopen(options["url"], b"one", timeout=10)
    with connections()(tmp_path, 0, "refuses") as options:
        send_connections(options)
    with datagrams()(tmp_path, 0, "refuses") as options:
        send_datagrams(options)
    assert [path.read_bytes() for path in sorted(tmp_path.iterdir())] == [b"", b"", b""]


@pytest.mark.parametrize("receiver", [connections(), posts()], ids=["connections", "posts"])
def test_one_that_hangs_ends_with_its_context(tmp_path: Path, receiver: Any) -> None:
    with receiver(tmp_path, 0, "hangs") as options:
        parts = urllib.parse.urlsplit(options.get("url", f"//127.0.0.1:{options.get('port')}"))
        link = socket.create_connection((parts.hostname, parts.port), timeout=0.2)
        link.sendall(b"POST /under/a/path/ HTTP/1.1\r\n\r\n")
        with pytest.raises(TimeoutError):
            link.recv(1)
    with link:
        assert link.recv(1) == b""

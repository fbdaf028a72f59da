"""What stat loggers send is in the file, as it was sent."""

from __future__ import annotations

import socket
import time
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
        request = urllib.request.Request(options["url"], data, method=method)
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.status == 200


@pytest.mark.parametrize(
    ("receiver", "send", "file", "expected"),
    [
        (datagrams(), send_datagrams, "datagrams", b"one\ntwo\n\n"),
        (connections(), send_connections, "received", b"one\ntwo"),
        (posts(path="/in"), send_posts, "posts", b"POST /in\none\nPUT /in\n\n"),
    ],
    ids=["datagrams", "connections", "posts"],
)
def test_what_is_sent_is_in_the_file(
    tmp_path: Path, receiver: Any, send: Callable[[Mapping[str, Any]], None], file: str, expected: bytes
) -> None:
    with receiver(tmp_path) as options:
        send(options)
        end = time.monotonic() + 10
        while (tmp_path / file).read_bytes() != expected and time.monotonic() < end:
            time.sleep(0.01)
    assert (tmp_path / file).read_bytes() == expected

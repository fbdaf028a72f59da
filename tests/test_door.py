"""``llmk serve`` as operators set it up: keys, addresses, TLS, and clients that never finish."""

from __future__ import annotations

import signal
import socket
import ssl
import subprocess
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trustme
from served import LLMK, Served, until

pytestmark = pytest.mark.slow_file


def test_an_empty_secret_is_no_open_server(tmp_path: Path) -> None:
    for variable in ("LLMK__SERVER__API_KEYS", "LLMK__SERVER__ADMIN_KEYS"):
        done = subprocess.run(
            [*LLMK, "serve", "--port", "0"], env={variable: ""}, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 2
        assert variable in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("host", "keys", "warned"), [("0.0.0.0", "[]", True), ("0.0.0.0", "k", False)])
def test_an_open_server_on_a_public_address_is_warned_of(tmp_path: Path, host: str, keys: str, warned: bool) -> None:
    served = Served(tmp_path / "log", "--port", "0", "--host", host, env={"LLMK__SERVER__API_KEYS": keys})
    try:
        assert ("this server is open" in served.log.read_text()) == warned
    finally:
        served.close()


def test_half_sent_requests_stop_nobody(tmp_path: Path) -> None:
    served = Served(tmp_path / "log", "--port", "0", "--server.max-concurrent", "4", "--server.read-timeout", "3")
    address = urlsplit(served.url)
    half = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    try:
        held = [socket.create_connection((str(address.hostname), address.port or 0), timeout=30) for _ in range(50)]
        for connection in held:
            connection.sendall(half + b'content-length: 100\r\n\r\n{"prompt"')
        assert served.post("/v1/completions", {"prompt": "One", "max_tokens": 2})[0] == 200
        for connection in held:
            assert b" 408 " in connection.recv(65536)
            connection.close()
    finally:
        served.close()


def test_https_and_a_new_certificate_on_sighup(tmp_path: Path) -> None:
    authority = trustme.CA()
    files = tmp_path / "cert.pem", tmp_path / "key.pem"

    def issue() -> None:
        leaf = authority.issue_cert("127.0.0.1")
        files[0].write_bytes(b"".join(part.bytes() for part in leaf.cert_chain_pems))
        files[1].write_bytes(leaf.private_key_pem.bytes())

    context = ssl.create_default_context()
    authority.configure_trust(context)
    issue()
    served = Served(
        tmp_path / "log", "--port", "0", "--server.tls-certificate", str(files[0]), "--server.tls-key", str(files[1])
    )
    address = urlsplit(served.url)

    def shown() -> bytes:
        with (
            socket.create_connection((str(address.hostname), address.port or 0), timeout=30) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
        ):
            return secure.getpeercert(binary_form=True) or b""

    try:
        assert served.url.startswith("https://")
        with urllib.request.urlopen(f"{served.url}/health", context=context, timeout=30) as response:
            assert response.status == 200
        first = shown()
        issue()
        served.process.send_signal(signal.SIGHUP)
        until(lambda: shown() != first)
        served.process.send_signal(signal.SIGTERM)
        assert served.wait() == 0
    finally:
        served.close()

"""HTTPS: certificates, clients' certificates, renewal, and files that can't be used."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme
from live import Answer, Live, run, until

from llmk.api import ConfigError
from llmk.config.schema import ServerSection
from llmk.serve import lifecycle
from llmk.serve.http import tls
from llmk.serve.http.tls import Tls
from llmk.serve.service import Service

GET = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"


class Files:
    """An authority, and the files of a certificate that it signed."""

    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()
        self.certificate, self.key, self.ca = folder / "cert.pem", folder / "key.pem", folder / "ca.pem"
        self.authority.cert_pem.write_to_path(str(self.ca))
        self.issue()

    def issue(self) -> None:
        """Writes a new certificate and key."""
        leaf = self.authority.issue_cert("localhost", "127.0.0.1")
        self.certificate.write_bytes(b"".join(part.bytes() for part in leaf.cert_chain_pems))
        self.key.write_bytes(leaf.private_key_pem.bytes())

    @property
    def section(self) -> dict[str, Any]:
        return {"tls_certificate": str(self.certificate), "tls_key": str(self.key)}

    def client(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        return context


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


async def serial(live: Live, context: ssl.SSLContext) -> str:
    """The serial number of the certificate that a new connection is shown."""
    _, writer = await asyncio.open_connection(*live.address, ssl=context)
    found: dict[str, Any] = writer.get_extra_info("peercert")
    writer.close()
    return str(found["serialNumber"])


def test_https_and_renewal_of_the_certificate(
    make_service: Callable[..., Service], files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(live: Live) -> None:
        assert live.tls is not None
        context = files.client()
        assert lifecycle.url_of(live.listener).startswith("https://")
        old = await live.connect(GET, ssl=context)
        assert (await Answer.read(old)).status == 200
        first = await serial(live, context)
        watching = asyncio.create_task(live.tls.watch())
        good = files.key.read_bytes()
        files.key.write_bytes(b"not a key at all")
        await asyncio.sleep(0.2)
        assert await serial(live, context) == first
        files.issue()
        assert files.key.read_bytes() != good
        async with asyncio.timeout(20):
            while await serial(live, context) == first:
                await asyncio.sleep(0.05)
        watching.cancel()
        second = await serial(live, context)
        files.issue()
        live.tls.reload()
        assert await serial(live, context) not in (first, second)
        live.writers[0].write(GET)
        assert (await Answer.read(old)).status == 200

    monkeypatch.setattr(tls, "WATCH_SECONDS", 0.02)
    run(scenario, make_service(**files.section))


def test_a_connection_without_tls_or_without_a_hand_shake_is_closed(
    make_service: Callable[..., Service], files: Files
) -> None:
    async def scenario(live: Live) -> None:
        assert b"HTTP" not in await (await live.connect(GET)).read()
        silent = await live.connect()
        assert await silent.read() == b""
        await until(lambda: live.listener.connections == 0)

    run(scenario, make_service(**files.section, read_timeout=0.3))


def test_clients_may_need_certificates(make_service: Callable[..., Service], files: Files) -> None:
    async def scenario(live: Live) -> None:
        context = files.client()
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await Answer.read(await live.connect(GET, ssl=context))
        files.authority.issue_cert("client@example.com").configure_cert(context)
        assert (await Answer.read(await live.connect(GET, ssl=context))).status == 200

    run(scenario, make_service(**files.section, tls_client_ca=str(files.ca)))


def test_files_that_cannot_be_used(files: Files, tmp_path: Path) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("x")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    other = trustme.CA().issue_cert("localhost").private_key_pem
    other.write_to_path(str(tmp_path / "other.pem"))
    from cryptography.hazmat.primitives import serialization as to

    locked = tmp_path / "locked.pem"
    plain = to.load_pem_private_key(files.key.read_bytes(), None)
    locked.write_bytes(
        plain.private_bytes(to.Encoding.PEM, to.PrivateFormat.PKCS8, to.BestAvailableEncryption(b"secret"))
    )
    for change, found in (
        ({"tls_certificate": ""}, "tls_key is set, but server.tls_certificate is not"),
        ({"tls_certificate": str(tmp_path / "no")}, "no .server.tls_certificate. can't be read: No such file"),
        ({"tls_key": str(tmp_path / "no")}, "no .server.tls_key. can't be read: No such file"),
        ({"tls_key": str(tmp_path)}, "server.tls_key. is not a regular file"),
        ({"tls_key": str(pipe)}, "server.tls_key. is not a regular file"),
        ({"tls_key": str(broken)}, "server.tls_key. are not a PEM pair"),
        ({"tls_key": ""}, "server.tls_key. are not a PEM pair"),
        ({"tls_key": str(tmp_path / "other.pem")}, "do not match"),
        ({"tls_key": str(locked)}, "has a passphrase"),
        ({"tls_client_ca": str(broken)}, "server.tls_client_ca. has no PEM certificate"),
    ):
        with pytest.raises(ConfigError, match=found):
            Tls.of(ServerSection(**{**files.section, **change}))
    assert Tls.of(ServerSection()) is None


def test_the_key_may_lie_in_the_certificates_file(files: Files) -> None:
    files.certificate.write_bytes(files.certificate.read_bytes() + files.key.read_bytes())
    assert Tls.of(ServerSection(tls_certificate=str(files.certificate))) is not None

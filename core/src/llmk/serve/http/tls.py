"""TLS: the server's certificate, and its renewal while the server runs."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import stat
from collections.abc import Iterator

from llmk.api import ConfigError
from llmk.config.schema import ServerSection

logger = logging.getLogger(__name__)

WATCH_SECONDS = 5.0


class Tls:
    """An SSL context with the files of ``[server]``. New connections use what :meth:`reload` last read."""

    def __init__(self, section: ServerSection) -> None:
        self._files = {
            "server.tls_certificate": section.tls_certificate,
            "server.tls_key": section.tls_key or section.tls_certificate,
            "server.tls_client_ca": section.tls_client_ca,
        }
        self._state = self._stamps()
        self.context = self._load(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH))
        self.context.set_alpn_protocols(["http/1.1"])
        if section.tls_client_ca:
            self.context.verify_mode = ssl.CERT_REQUIRED

    @classmethod
    def of(cls, section: ServerSection) -> Tls | None:
        """TLS if a certificate is configured. Raises :class:`~llmk.api.ConfigError` for files that can't be used."""
        if section.tls_certificate:
            return cls(section)
        for name in ("tls_key", "tls_client_ca"):
            if getattr(section, name):
                raise ConfigError(f"server.{name} is set, but server.tls_certificate is not")
        return None

    def reload(self) -> None:
        """Reads the files again. If they can't be used, the former ones stay in use."""
        self._state = self._stamps()
        try:
            # Loaded into a separate context first, since a key that doesn't match must not replace the current one.
            self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
            self._load(self.context)
        except ConfigError as error:
            logger.error("the TLS certificate was not renewed: %s", error)
        else:
            logger.info("the TLS certificate was read again")

    async def watch(self) -> None:
        """Reloads when a file changes, until cancelled."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            if await asyncio.to_thread(self._stamps) != self._state:
                self.reload()

    def _load(self, context: ssl.SSLContext) -> ssl.SSLContext:
        certificate, key, client_ca = self._files.values()
        for name, path in self._files.items():
            if path:
                _check_readable(name, path)
        try:
            context.load_cert_chain(certificate, key, password=_no_password)
        except _Encrypted as error:
            raise ConfigError(
                f"the key in {key} (server.tls_key) has a passphrase",
                hint="decrypt it: openssl pkey -in KEY -out PLAIN",
            ) from error
        except ssl.SSLError as error:
            what = "do not match" if error.reason == "KEY_VALUES_MISMATCH" else "are not a PEM pair"
            pair = f"the certificate {certificate} and the key {key} (server.tls_certificate, server.tls_key)"
            hint = "name a certificate, with its chain, and its own key, each a file in PEM (openssl converts others)"
            raise ConfigError(f"{pair} {what}: {error}", hint=hint) from error
        if client_ca:
            try:
                context.load_verify_locations(client_ca)
            except ssl.SSLError as error:
                raise ConfigError(f"{client_ca} (server.tls_client_ca) has no PEM certificate: {error}") from error
        return context

    def _stamps(self) -> list[tuple[int, ...]]:
        return list(self._stamp())

    def _stamp(self) -> Iterator[tuple[int, ...]]:
        """Identifies the versions of the files. Links are followed, since mounted secrets are links."""
        for path in filter(None, self._files.values()):
            try:
                found = os.stat(path)
            except OSError:
                yield ()
            else:
                yield found.st_mtime_ns, found.st_size, found.st_ino


class _Encrypted(Exception):
    """OpenSSL needs a passphrase, which a server can't prompt for."""


def _no_password() -> str:
    raise _Encrypted


def _check_readable(name: str, path: str) -> None:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise ConfigError(f"{path} ({name}) is not a regular file")
        with open(path, "rb"):
            pass
    except OSError as error:
        hint = "name a PEM file that the user who runs llmk may read"
        raise ConfigError(f"{path} ({name}) can't be read: {error.strerror}", hint=hint) from error

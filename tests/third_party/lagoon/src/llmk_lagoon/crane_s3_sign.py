"""Signatures of requests to S3, version 4."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import SplitResult

EMPTY = hashlib.sha256(b"").hexdigest()


def signed(
    url: SplitResult, region: str, environment: Mapping[str, str], now: datetime | None = None
) -> dict[str, str]:
    """The headers that sign a GET of a URL whose path and query are encoded and sorted; none without credentials."""
    key, secret = (environment.get(f"AWS_{name}", "") for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"))
    if not key or not secret:
        return {}
    time = (now or datetime.now(UTC)).strftime("%Y%m%dT%H%M%SZ")
    headers = {"host": url.netloc, "x-amz-content-sha256": EMPTY, "x-amz-date": time}
    if token := environment.get("AWS_SESSION_TOKEN"):
        headers["x-amz-security-token"] = token
    names = ";".join(headers)
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    canonical = f"GET\n{url.path}\n{url.query}\n{lines}\n{names}\n{EMPTY}"
    scope = f"{time[:8]}/{region}/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{time}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    code = f"AWS4{secret}".encode()
    for part in (*scope.split("/"), text):
        code = hmac.digest(code, part.encode(), "sha256")
    signature = f"Credential={key}/{scope}, SignedHeaders={names}, Signature={code.hex()}"
    return {**headers, "Authorization": f"AWS4-HMAC-SHA256 {signature}"}

"""The server against its own OpenAPI document, by schemathesis: every check, and requests in sequence."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from served import Served

pytestmark = pytest.mark.slow_file

ADMIN = "operators-key"
KEY = "clients-key"
EXAMPLES = 12
EXCEPTIONS = {
    "positive_data_acceptance": "the document can't say all that a request must be: token ids of this vocabulary, a "
    "prompt or messages but not both, roles that need content, prompts that leave room in the context",
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    server = Served(
        *(tmp_path_factory.mktemp("schemathesis") / "log", "--port", "0"),
        env={"LLMK__SERVER__ADMIN_KEYS": ADMIN, "LLMK__SERVER__API_KEYS": KEY},
    )
    yield server
    server.close()


def schemathesis(served: Served, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """A run of all checks but :data:`EXCEPTIONS`, with the same requests each time."""
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", f"{served.url}/openapi.json"),
        *("--header", f"Authorization: Bearer {KEY}", "--header", f"x-admin-key: {ADMIN}"),
        "--generation-deterministic",
        *("--checks", "all", "--exclude-checks", ",".join(EXCEPTIONS), "--request-timeout", "120", "--no-color"),
        *options,
    ]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=1500)


@pytest.mark.slow
@pytest.mark.timeout(1600)
def test_every_answer_is_as_the_document_says(served: Served, tmp_path: Path) -> None:
    done = schemathesis(
        served, tmp_path, "--max-examples", str(EXAMPLES), "--phases", "examples,coverage,fuzzing,stateful"
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2000:]
    assert served.get("/health")[0] == 200
    assert "Traceback" not in served.log.read_text()


def test_the_document_is_complete(served: Served) -> None:
    import urllib.request

    request = urllib.request.Request(f"{served.url}/openapi.json", headers={"authorization": f"Bearer {KEY}"})
    document = json.load(urllib.request.urlopen(request))
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert ("requestBody" in operation) == (method == "post" and not path.endswith("/cancel")), (method, path)
            for status, response in operation["responses"].items():
                assert all("schema" in content for content in response["content"].values()), (method, path, status)

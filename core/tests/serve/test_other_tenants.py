"""What one client stores, another one does not find, by any route."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripted import ScriptedEngine
from starlette.testclient import TestClient

from llmk.config.storage_section import StorageSection
from llmk.serve.app import create_app
from llmk.serve.service import Service
from llmk.serve.storage.store import Storage

MINE, THEIRS = ({"authorization": f"Bearer {key}"} for key in ("my-key", "their-key"))
HI = {"input": "hi", "model": "org/scripted"}


def test_another_client_finds_reads_changes_and_deletes_nothing(
    make_service: Callable[..., Service], engine: ScriptedEngine, tmp_path: Path
) -> None:
    service = make_service(api_keys=("my-key", "their-key"))
    service.storage = Storage(StorageSection(folder=str(tmp_path)), "m")
    with TestClient(create_app(service), base_url="http://localhost") as client:

        def send(method: str, path: str, body: Any = None, *, mine: bool = True, **form: Any) -> Any:
            return client.request(method, path, json=body, headers=MINE if mine else THEIRS, **form)

        response = send("POST", "/v1/responses", HI).json()
        conversation = send("POST", "/v1/conversations", {"items": [{"role": "user", "content": "a"}]}).json()
        file = client.post(
            "/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", b"{}")}, headers=MINE
        ).json()
        new = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        batch = send("POST", "/v1/batches", new).json()
        engine.gate = asyncio.Event()
        running = send("POST", "/v1/responses", {**HI, "background": True}).json()
        at = f"/v1/conversations/{conversation['id']}"
        item = send("GET", f"{at}/items").json()["data"][0]["id"]
        routes = {
            f"/v1/responses/{response['id']}": ("GET", "DELETE"),
            f"/v1/responses/{response['id']}?stream=true": ("GET",),
            f"/v1/responses/{response['id']}/input_items": ("GET",),
            f"/v1/responses/{response['id']}/cancel": ("POST",),
            f"/v1/responses/{running['id']}": ("GET", "DELETE"),
            f"/v1/responses/{running['id']}/cancel": ("POST",),
            at: ("GET", "POST", "DELETE"),
            f"{at}/items": ("GET", "POST"),
            f"{at}/items/{item}": ("GET", "DELETE"),
            f"/v1/files/{file['id']}": ("GET", "DELETE"),
            f"/v1/files/{file['id']}/content": ("GET",),
            f"/v1/batches/{batch['id']}": ("GET",),
            f"/v1/batches/{batch['id']}/cancel": ("POST",),
        }
        before = {path: send("GET", path).text for path, methods in routes.items() if "GET" in methods}
        for path, methods in routes.items():
            for method in methods:
                body = {"items": [{"role": "user", "content": "x"}]} if path.endswith("/items") else {"metadata": {}}
                reply = send(method, path, body if method == "POST" else None, mine=False)
                assert reply.status_code == 404, (method, path, reply.text)
        for change in (
            {"previous_response_id": response["id"]},
            {"conversation": conversation["id"]},
            {"input": [{"type": "item_reference", "id": item}]},
            {"input": [{"type": "item_reference", "id": response["output"][0]["id"]}]},
        ):
            assert send("POST", "/v1/responses", {**HI, **change}, mine=False).status_code == 404, change
            assert send("POST", "/v1/responses/input_tokens", {**HI, **change}, mine=False).status_code == 404, change
        assert send("POST", "/v1/batches", new, mine=False).status_code == 400
        for path in ("/v1/files", "/v1/batches"):
            assert send("GET", path, mine=False).json()["data"] == []
            last = file["id"] if path == "/v1/files" else batch["id"]
            assert send("GET", f"{path}?after={last}", mine=False).status_code == 404
        after = {path: send("GET", path).text for path in before}
        assert {path for path in before if before[path] != after[path]} <= {f"/v1/batches/{batch['id']}"}
        assert send("POST", f"/v1/responses/{running['id']}/cancel").json()["status"] == "cancelled"

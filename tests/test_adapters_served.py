"""Adapters through a real server: by the request's ``model``, and after its engine was killed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from peft_adapters import write_adapter
from served import Served, until

from llmk_testing.checkpoints import write_checkpoint

pytestmark = pytest.mark.slow_file

COMPLETIONS = "/v1/completions"
GREEDY: dict[str, Any] = {"prompt": [7, 8, 9], "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("adapters")
    base = write_checkpoint(folder / "base", "llama", max_position_embeddings=2048)
    adapter = write_adapter(folder / "mine", base, seed=1, r=4, target_modules=["q_proj", "v_proj", "up_proj"])
    server = Served(folder / "log", str(base), "--port", "0", "--set", f"adapters.my-adapter={adapter}")
    yield server
    server.close()


def text(served: Served, model: str | None, **more: Any) -> str:
    status, answer = served.post(COMPLETIONS, {**GREEDY, "max_tokens": 16, "model": model, **more})
    assert status == 200, answer
    assert answer["model"] == (model or served.model)
    return str(answer["choices"][0]["text"])


def test_models(served: Served) -> None:
    _, listed = served.get("/v1/models")
    assert '"id":"base"' in listed
    status, card = served.get("/v1/models/my-adapter")
    assert status == 200
    assert '"parent":"base"' in card
    assert '"parent"' not in served.get("/v1/models/base")[1]


def test_the_request_chooses(served: Served) -> None:
    plain, mine = text(served, None), text(served, "my-adapter")
    assert text(served, "base") == plain != mine
    body = {"model": "my-adapter", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    status, answer = served.post("/v1/chat/completions", body)
    assert status == 200
    assert answer["model"] == "my-adapter"
    counted = r'request_success_total\{finished_reason="length",model_name="(.*)"\}'
    assert set(re.findall(counted, served.get("/metrics")[1])) == {"base", "my-adapter"}


def test_an_unknown_model(served: Served) -> None:
    status, answer = served.post(COMPLETIONS, {**GREEDY, "model": "my_adapter"})
    assert status == 404
    assert answer["error"]["message"] == (
        "the model 'my_adapter' is not served here; 'base' is, and its adapters 'my-adapter'"
    )


def test_a_request_keeps_its_adapter_when_the_engine_is_killed(served: Served, tmp_path: Path) -> None:
    expected = text(served, "my-adapter", max_tokens=1200)
    body = {**GREEDY, "model": "my-adapter", "max_tokens": 1200}
    events = served.stream(COMPLETIONS, body)
    got = [next(events)["choices"][0]["text"] for _ in range(5)]
    engine = served.engine()
    assert engine is not None
    engine.kill()
    got += [event["choices"][0]["text"] for event in events]
    assert "".join(got) == expected
    assert served.metric("llmk_engine_restarts_total") == 1
    until(lambda: served.get("/health")[0] == 200)

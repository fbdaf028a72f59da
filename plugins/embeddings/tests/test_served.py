"""Embeddings over HTTP, from an engine in a process of its own."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import openai
import pytest
from served import Served


@pytest.mark.slow
def test_openai_s_client_is_answered(tmp_path: Path) -> None:
    with closing(Served(tmp_path / "log", "--port", "0")) as served:
        client = openai.OpenAI(base_url=f"{served.url}/v1/io", api_key="none", max_retries=0)
        texts = ["a text", "another"]
        both = client.embeddings.create(model=served.model, input=texts)
        assert [entry.index for entry in both.data] == [0, 1]
        assert both.usage.prompt_tokens > 2
        for text, entry in zip(texts, both.data, strict=True):
            alone = client.embeddings.create(model=served.model, input=text, encoding_format="float").data[0].embedding
            assert entry.embedding == pytest.approx(alone, abs=1e-2), "bf16 rounds as the batch has it"
        with pytest.raises(openai.NotFoundError, match="not served here") as caught:
            client.embeddings.create(model="another", input="a")
        assert caught.value.param == "model"
        status, answer = served.post("/v1/io/sparse", {"input": "a"})
        assert status == 400
        assert "sparse_linear.safetensors" in answer["error"]["message"]

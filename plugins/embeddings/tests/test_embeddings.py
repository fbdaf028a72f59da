"""Embeddings of a tiny model, against ``transformers`` in float32."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from llmk import LLM
from llmk.api import PluginError, RequestError
from llmk_testing.checkpoints import write_checkpoint

TEXTS = ["The scheduler says which requests run, and which requests wait.", "numbers", "<|im_start|>a hook, a hook: 7"]
TOLERANCE = 2e-5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_checkpoint(tmp_path_factory.mktemp("tiny"), "qwen3")
    torch.manual_seed(5)
    save_file({"weight": torch.randn(1, 64) / 4, "bias": torch.randn(1) / 4}, folder / "sparse_linear.safetensors")
    return folder


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Any:
    from transformers import AutoModel

    return AutoModel.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture(scope="module", params=[{}, {"max_num_batched_tokens": 5}, {"chunked_prefill": False}], ids=str)
def llm(folder: Path, request: pytest.FixtureRequest) -> Iterator[LLM]:
    with LLM(str(folder), dtype="float32", **{"cache.num_blocks": 64, "cache.block_size": 4}, **request.param) as llm:
        yield llm


def hidden(oracle: Any, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return oracle(torch.tensor([ids])).last_hidden_state[0]


def expected_weights(oracle: Any, folder: Path, llm: LLM, ids: list[int]) -> dict[str, float]:
    from safetensors.torch import load_file

    head = load_file(folder / "sparse_linear.safetensors")
    weights = torch.nn.functional.linear(hidden(oracle, ids), head["weight"], head["bias"]).relu()[:, 0]
    kept = {i: float(weights[torch.tensor(ids) == i].max()) for i in set(ids) - llm.tokenizer.special_token_ids}
    return {str(token): weight for token, weight in kept.items() if weight > 0}


@pytest.mark.hook("llmk_io_processors")
@pytest.mark.parametrize("texts", [TEXTS, TEXTS[0]], ids=["batched", "single"])
def test_sparse_weights_equal_transformers(llm: LLM, folder: Path, oracle: Any, texts: Any) -> None:
    answer = llm.process("sparse", {"input": texts, "return_tokens": True})
    prompts = [llm.tokenizer.encode(text) for text in ([texts] if isinstance(texts, str) else texts)]
    assert [entry["index"] for entry in answer["data"]] == list(range(len(prompts)))
    for entry, ids in zip(answer["data"], prompts, strict=True):
        wanted = expected_weights(oracle, folder, llm, ids)
        assert wanted
        assert entry["weights"] == pytest.approx(wanted, abs=TOLERANCE)
        assert entry["tokens"] == {token: llm.tokenizer.token_text(int(token)) for token in wanted}
    counts = [len(entry["weights"]) for entry in answer["data"]]
    assert sum(counts) < len({(at, i) for at, ids in enumerate(prompts) for i in ids}), "no weight was 0"
    assert answer["usage"]["prompt_tokens"] == sum(map(len, prompts))


def test_cached_prefixes_are_recomputed(llm: LLM) -> None:
    first = llm.process("sparse", {"input": TEXTS[0]})
    hits = llm.stats.prefix_hit_tokens
    assert llm.process("sparse", {"input": TEXTS[0]}) == first
    assert llm.stats.prefix_hit_tokens == hits
    llm.process("embeddings", {"input": TEXTS[0]})
    assert llm.stats.prefix_hit_tokens > hits, "the last token's state needs no others"


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_vectors_equal_transformers(llm: LLM, oracle: Any, pooling: str) -> None:
    answer = llm.process("embeddings", {"input": TEXTS, "pooling": pooling, "model": llm.boot.checkpoint.path.name})
    assert answer["object"] == "list"
    prompts = [llm.tokenizer.encode(text) for text in TEXTS]
    for entry, ids in zip(answer["data"], prompts, strict=True):
        states = hidden(oracle, ids)
        wanted = torch.nn.functional.normalize(states[-1] if pooling == "last" else states.mean(0), dim=0)
        assert entry["embedding"] == pytest.approx(wanted.tolist(), abs=TOLERANCE)
    assert answer["usage"] == {"prompt_tokens": sum(map(len, prompts)), "total_tokens": sum(map(len, prompts))}


def test_vectors_truncated_and_encoded(llm: LLM) -> None:
    plain = llm.process("embeddings", {"input": [[5, 6, 7], [8]], "normalize": False})
    verbose = llm.process(
        "embeddings",
        {"input": [[5, 6, 7], [8]], "normalize": False, "dimensions": 3, "encoding_format": "base64"},
    )
    for whole, entry in zip(plain["data"], verbose["data"], strict=True):
        vector = np.frombuffer(base64.b64decode(entry["embedding"]), "<f4")
        assert vector.tolist() == pytest.approx(whole["embedding"][:3], abs=TOLERANCE)


@pytest.mark.parametrize(
    ("name", "body", "param"),
    [
        ("sparse", {}, "input"),
        ("sparse", {"input": []}, "input"),
        ("sparse", {"input": ["a", 5]}, "input[1]"),
        ("sparse", {"input": ["a", ""]}, "input[1]"),
        ("sparse", {"input": [["a"]]}, "input[0]"),
        ("sparse", {"input": [[5], [99999]]}, "input[1]"),
        ("sparse", {"input": "a " * 300}, "input"),
        ("sparse", {"input": "a", "return_tokens": 1}, "return_tokens"),
        ("sparse", {"input": "a", "retrun_tokens": True}, "retrun_tokens"),
        ("embeddings", {"input": "a", "model": "another"}, "model"),
        ("embeddings", {"input": "a", "dimensions": 65}, "dimensions"),
        ("embeddings", {"input": "a", "dimensions": True}, "dimensions"),
        ("embeddings", {"input": "a", "pooling": "max"}, "pooling"),
        ("embeddings", {"input": "a", "encoding_format": []}, "encoding_format"),
    ],
)
def test_invalid_fields_are_named(llm: LLM, name: str, body: Any, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        llm.process(name, body)
    assert caught.value.param == param
    assert not llm.core.has_work


def test_the_default_pooling_is_configured(folder: Path) -> None:
    with LLM(str(folder), **{"plugin.embeddings.pooling": "mean", "cache.num_blocks": 16}) as llm:
        mean = llm.process("embeddings", {"input": "a b c", "pooling": "mean"})
        assert llm.process("embeddings", {"input": "a b c"}) == mean
        assert llm.process("embeddings", {"input": "a b c", "pooling": "last"}) != mean


def test_a_missing_or_wrong_head_is_reported(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, "qwen3")
    with LLM(str(folder), **{"cache.num_blocks": 16}) as llm:
        with pytest.raises(RequestError, match=r"does not serve .*: .*sparse_linear\.safetensors"):
            llm.process("sparse", {"input": "a"})
        save_file({"weight": torch.randn(1, 32), "bias": torch.randn(1)}, folder / "sparse_linear.safetensors")
        with pytest.raises(
            PluginError,
            match=r"embeddings\.sparse of .* failed: CheckpointError: .* not 'weight' \[1, 64\] and 'bias' \[1\]",
        ):
            llm.process("sparse", {"input": "a"})

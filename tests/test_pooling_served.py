"""The routes that pool, over HTTP and by the official ``openai`` client, against what the Python API computes."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI
from pooled_checkpoints import write_classifier, write_embedder
from served import Served

from llmk import LLM

pytestmark = pytest.mark.slow_file

TEXTS = ["Where is Paris?", "Paris is a city.", "Bread is made of flour, water and salt.", "a"]
SMALL = {"LLMK__LIMITS__PROMPTS": "8", "LLMK__LIMITS__POOLED_VALUES": "1000"}
QWEN3 = {"head_dim": 32, "tie_word_embeddings": True}


def vectors(texts: list[Any], folder: str = "", **options: Any) -> list[list[float]]:
    """What the Python API computes."""
    with LLM(folder, platform={"threads": 1}, cache={"memory_gib": 0.25}) as llm:
        return [output.embedding for output in llm.embed(texts, use_tqdm=False, **options)]


def near(found: list[float], wanted: list[float]) -> bool:
    return found == pytest.approx(wanted, abs=2e-3)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    server = Served(tmp_path_factory.mktemp("demo") / "log", "--port", "0")
    yield server
    server.close()


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, str]]:
    folder = tmp_path_factory.mktemp("embedder")
    named = {"prompts": {"query": "Find: "}}
    checkpoint = write_embedder(folder, "qwen3", prompts=named, **QWEN3)
    server = Served(folder / "log", str(checkpoint), "--port", "0", env=SMALL)
    yield server, str(checkpoint)
    server.close()


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, str]]:
    folder = tmp_path_factory.mktemp("reranker")
    checkpoint = write_classifier(folder, "qwen3", 1, **QWEN3)
    server = Served(folder / "log", str(checkpoint), "--port", "0")
    yield server, str(checkpoint)
    server.close()


def test_the_openai_client_embeds_with_the_demo_model(demo: Served) -> None:
    client = OpenAI(base_url=f"{demo.url}/v1", api_key="none", max_retries=0, timeout=60)
    wanted = vectors(TEXTS)
    answer = client.embeddings.create(model=demo.model, input=TEXTS)  # base64, which the client asks for and decodes
    assert [entry.index for entry in answer.data] == [0, 1, 2, 3]
    assert all(near(entry.embedding, vector) for entry, vector in zip(answer.data, wanted, strict=True))
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 10
    plain = client.embeddings.create(model=demo.model, input=TEXTS[1], encoding_format="float", dimensions=16)
    (entry,) = plain.data
    assert near([entry.embedding[0] / entry.embedding[1]], [wanted[1][0] / wanted[1][1]])
    assert len(entry.embedding) == 16
    assert sum(value * value for value in entry.embedding) == pytest.approx(1, abs=1e-5)
    tokens: list[int] = demo.post("/tokenize", {"prompt": TEXTS[0]})[1]["tokens"]
    for given in (tokens, [tokens]):
        (entry,) = client.embeddings.create(model=demo.model, input=given).data
        assert near(entry.embedding, wanted[0])
    assert client.chat.completions.create(model=demo.model, messages=[{"role": "user", "content": "Hi"}], max_tokens=2)
    (card,) = client.models.list().data
    assert card.model_dump()["capabilities"] == ["completion", "embedding"]
    with pytest.raises(openai.NotFoundError, match="is not served here"):
        client.embeddings.create(model="other", input="a")
    with pytest.raises(openai.BadRequestError, match="dimensions must be a whole number from 1 to"):
        client.embeddings.create(model=demo.model, input="a", dimensions=100_000)


def test_embeddings_among_generation(demo: Served) -> None:
    """Many at once, with answers that are generated meanwhile."""
    wanted = vectors(TEXTS)
    messages = [{"role": "user", "content": "Count to ten"}]

    def call(number: int) -> Any:
        if number % 2:
            return demo.post("/v1/chat/completions", {"messages": messages, "max_tokens": 20, "temperature": 0})
        return demo.post("/v1/embeddings", {"input": TEXTS[number // 2 % 4]})

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(call, range(24)))
    assert all(status == 200 for status, _ in found)
    assert len({answer["choices"][0]["message"]["content"] for _, answer in found[1::2]}) == 1
    for number, (_, answer) in enumerate(found[::2]):
        assert near(answer["data"][0]["embedding"], wanted[number % 4])


def test_an_embedding_model_has_all_its_routes(embedder: tuple[Served, str]) -> None:
    served, folder = embedder
    wanted, queries = vectors(TEXTS, folder), vectors(TEXTS[:1], folder, prompt_name="query")
    _, answer = served.post("/v1/embeddings", {"input": TEXTS, "encoding_format": "base64"})
    for entry, vector in zip(answer["data"], wanted, strict=True):
        data = base64.b64decode(entry["embedding"])
        assert near(list(struct.unpack(f"<{len(data) // 4}f", data)), vector)
    _, answer = served.post("/v1/embeddings", {"input": TEXTS[0], "prompt_name": "query"})
    assert near(answer["data"][0]["embedding"], queries[0])
    _, pooled = served.post("/pooling", {"input": TEXTS[0]})
    assert near(pooled["data"][0]["data"], wanted[0])
    _, pooled = served.post("/pooling", {"input": TEXTS[3], "task": "token_embed"})
    assert near(pooled["data"][0]["data"][-1], wanted[3])
    cosines = [sum(a * b for a, b in zip(queries[0], vector, strict=True)) for vector in wanted[1:]]
    _, scored = served.post("/v1/score", {"text_1": TEXTS[0], "text_2": TEXTS[1:]})
    assert near([entry["score"] for entry in scored["data"]], cosines)
    _, ranked = served.post("/v1/rerank", {"query": TEXTS[0], "documents": TEXTS[1:], "top_n": 2})
    best = sorted(range(3), key=lambda at: -cosines[at])[:2]
    assert [result["index"] for result in ranked["results"]] == best
    assert [result["document"]["text"] for result in ranked["results"]] == [TEXTS[1 + at] for at in best]
    assert served.get("/v1/models")[1].count('"embedding"') == 1


def test_a_reranker_has_all_its_routes(reranker: tuple[Served, str]) -> None:
    served, folder = reranker
    with LLM(folder, platform={"threads": 1}, cache={"memory_gib": 0.25}) as llm:
        scores = llm.score(TEXTS[0], TEXTS[1:], use_tqdm=False)
        (label,) = llm.classify(TEXTS[0], use_tqdm=False)
    documents = [TEXTS[1], {"text": TEXTS[2], "title": "not looked at"}, TEXTS[3]]
    body = {"model": served.model, "query": TEXTS[0], "documents": documents}
    best = sorted(range(3), key=lambda at: -scores[at])
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        status, ranked = served.post(path, body)
        assert status == 200, ranked
        assert [result["index"] for result in ranked["results"]] == best
        assert near([result["relevance_score"] for result in ranked["results"]], [scores[at] for at in best])
        assert all(("document" in result) == (path != "/v2/rerank") for result in ranked["results"])
    _, bare = served.post("/rerank", {**body, "return_documents": False})
    assert "document" not in bare["results"][0]
    for path in ("/score", "/v1/score"):
        _, scored = served.post(path, {"queries": [TEXTS[0]] * 3, "documents": TEXTS[1:]})
        assert near([entry["score"] for entry in scored["data"]], scores)
    for path in ("/classify", "/v1/classify"):
        _, classified = served.post(path, {"input": TEXTS[0]})
        (entry,) = classified["data"]
        assert (entry["label"], entry["num_classes"]) == ("a", 1)
        assert near(entry["probs"], label.probs)
    _, pooled = served.post("/pooling", {"input": TEXTS[0], "use_activation": False})
    assert pooled["data"][0]["data"] != classified["data"][0]["probs"]


BAD: list[tuple[str, dict[str, Any], str, str | None]] = [
    ("/v1/embeddings", {}, "input: Field required", "input"),
    ("/v1/embeddings", {"input": []}, "'input' is empty", "input"),
    ("/v1/embeddings", {"input": ["a", ""]}, "entry 1 of 'input' is empty", "input"),
    ("/v1/embeddings", {"input": [[1], []]}, "entry 1 of 'input' is empty", "input"),
    ("/v1/embeddings", {"input": [1.5]}, "input", "input[0]"),
    ("/v1/embeddings", {"input": ["a"] * 9}, "'input' has 9 entries; the limit is 8", "input"),
    ("/v1/embeddings", {"input": [3, 100_000]}, "token 100000", "input"),
    ("/v1/embeddings", {"input": [3] * 300}, "maximum context length is 256 tokens, at least one", None),
    ("/v1/embeddings", {"input": "word " * 5000}, "a text of 25000 characters has more", None),
    ("/v1/embeddings", {"input": "a", "dimensions": 0}, "greater than or equal to 1", "dimensions"),
    ("/v1/embeddings", {"input": "a", "dimensions": 65}, "from 1 to 64", "dimensions"),
    ("/v1/embeddings", {"input": "a", "encoding_format": "hex"}, "'float' or 'base64'", "encoding_format"),
    ("/v1/embeddings", {"input": "a", "prompt_name": "x"}, "no prompt 'x' (there are: query)", "prompt_name"),
    ("/v1/embeddings", {"input": [3], "prompt_name": "query"}, "not before token ids", "prompt_name"),
    ("/v1/embeddings", {"input": "a", "dimension": 3}, "did you mean 'dimensions'?", "dimension"),
    ("/v1/embeddings", {"input": "a", "truncate_prompt_tokens": 999}, "may have 255", "truncate_prompt_tokens"),
    ("/pooling", {"input": "word " * 20, "task": "token_embed"}, "the limit is 1000 (limits.pooled_values)", "input"),
    ("/v1/classify", {"input": "a"}, "computes no scores of labels", None),
    ("/v1/score", {"text_1": "a"}, "text_2: Field required", "text_2"),
    ("/v1/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "2 queries and 3 documents", "text_1"),
    ("/v1/score", {"text_1": "a", "text_2": [""]}, "'text_2' is empty", "text_2"),
    ("/v1/rerank", {"query": "a", "documents": []}, "at least 1 item", "documents"),
    ("/v1/rerank", {"query": "a", "documents": [{"title": "b"}]}, "documents[0] has no text", "documents"),
    ("/v1/rerank", {"query": "a", "documents": ["b"], "top_n": 0}, "greater than or equal to 1", "top_n"),
    ("/v1/rerank", {"query": "a", "documents": ["b"], "rank_fields": ["x"]}, "the field 'text'", "rank_fields"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}, "no head that generates text", None),
    ("/v1/completions", {"prompt": "a"}, "the model computes embeddings; it has no head", None),
]


@pytest.mark.parametrize(("path", "body", "message", "param"), BAD)
def test_bad_requests(embedder: tuple[Served, str], path: str, body: Any, message: str, param: str | None) -> None:
    status, answer = embedder[0].post(path, body)
    assert status == 400
    assert message in answer["error"]["message"]
    assert answer["error"]["param"] == param


def test_bodies_that_are_no_objects(embedder: tuple[Served, str]) -> None:
    for path in ("/v1/embeddings", "/v1/score", "/rerank", "/pooling", "/classify"):
        assert embedder[0].post(path, [1])[0] == 400


def test_truncation_keeps_the_first_tokens(embedder: tuple[Served, str]) -> None:
    served, folder = embedder
    text = "many words of a text " * 200
    tokens = served.post("/tokenize", {"prompt": text})[1]["tokens"]
    wanted = vectors([tokens[:20], tokens[:255]], folder)
    for most, vector in zip((20, -1), wanted, strict=True):
        for given in (text, tokens):
            _, answer = served.post("/v1/embeddings", {"input": given, "truncate_prompt_tokens": most})
            assert near(answer["data"][0]["embedding"], vector)


def test_a_reranker_generates_nothing(reranker: tuple[Served, str], tmp_path: Path) -> None:
    served = reranker[0]
    for path, body, message in (
        ("/v1/completions", {"prompt": "a"}, "the model classifies; it has no head that generates text"),
        ("/v1/embeddings", {"input": "a"}, "the model classifies; it computes no embeddings"),
        ("/rerank", {"query": "a " * 400, "documents": ["b"]}, "maximum context length is 256 tokens"),
        (
            "/rerank",
            {"query": "a " * 40, "documents": ["b"], "truncate_prompt_tokens": 4},
            "no room for a document in 4",
        ),
    ):
        status, answer = served.post(path, body)
        assert (status, message in answer["error"]["message"]) == (400, True), answer
    long = {"query": "a", "documents": ["b " * 900], "truncate_prompt_tokens": -1}
    assert served.post("/rerank", long)[0] == 200

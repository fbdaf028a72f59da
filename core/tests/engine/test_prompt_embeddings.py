"""Embeddings in place of prompt tokens: what is taken, what is refused, how the prefix cache knows them, and which rows
of a step they are."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import save

from llmk.api import ContextLengthExceeded, RequestError
from llmk.engine.cache.block_cache import BlockCache
from llmk.engine.device.given_rows import GivenRows
from llmk.engine.text.input_processor import InputProcessor
from llmk.engine.text.prompt_embeddings import embedded, from_arrays, from_base64
from llmk.engine.wire.engine_info import EngineInfo
from llmk.engine.wire.prompt import EmbeddedPrompt, EmbeddingFormat, EmbeddingRun, left_of
from llmk.engine.wire.request import EngineRequest, RequestContext
from llmk.engine.wire.sampling_params import SamplingParams
from llmk.engine.wire.step import NewRequest, Work
from llmk.planning.cache_groups import CacheGroup

SIZE, VOCAB, LONGEST = 6, 90, 32


def info(dtype: str = "float32", size: int = SIZE) -> EngineInfo:
    wanted = EmbeddingFormat(model="models.some", size=size, dtype=dtype)
    return EngineInfo(max_model_len=LONGEST, vocab_size=VOCAB, block_size=4, num_blocks=9, plan={}, embeddings=wanted)


def rows(length: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(length, SIZE, generator=torch.Generator().manual_seed(seed)).to(dtype)


def sent(**tensors: torch.Tensor) -> str:
    return base64.b64encode(save(tensors)).decode()


def values(run: EmbeddingRun) -> torch.Tensor:
    return torch.frombuffer(bytearray(run.data), dtype=getattr(torch, run.dtype)).view(run.length, -1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_what_is_sent_arrives_as_it_is(dtype: torch.dtype) -> None:
    given = rows(7, dtype=dtype)
    prompt = embedded([from_base64(sent(x=given))], info())
    assert prompt.token_ids == [VOCAB] * 7
    (run,) = prompt.runs
    assert torch.equal(values(run), given)
    assert from_arrays(given.requires_grad_(), info()) == prompt
    if dtype != torch.bfloat16:
        assert from_arrays(given.detach().numpy(), info()) == prompt
    assert from_arrays(given.detach().t().contiguous().t(), info()) == prompt
    copied = msgspec.msgpack.decode(msgspec.msgpack.encode(prompt), type=EmbeddedPrompt)
    assert copied == prompt


def test_runs_follow_on_each_other() -> None:
    prompt = from_arrays(([1, 2], rows(3), rows(2, 1), [4]), info())
    assert prompt.token_ids == [1, 2, *[VOCAB] * 5, 4]
    assert [(run.start, run.stop) for run in prompt.runs] == [(2, 5), (5, 7)]
    left = left_of(prompt.runs, 4)
    assert [(run.start, run.stop) for run in left] == [(4, 5), (5, 7)]
    assert torch.equal(values(left[0]), rows(3)[2:])
    assert left[0].keys == prompt.runs[0].keys[-16:]
    assert left_of(prompt.runs, 7) == []


def broken(row: int, value: float) -> torch.Tensor:
    found = rows(20)
    found[row, 3] = value
    return found


REFUSED: dict[str, tuple[Any, str, str]] = {
    "no base64": ("héllo", "float32", "is not base64"),
    "no padding": ("abc", "float32", "is not base64"),
    "no safetensors": (base64.b64encode(b"PK\x03\x04 a pickle").decode(), "float32", "is not a safetensors file"),
    "nothing": ("", "float32", "is not a safetensors file"),
    "cut": (sent(x=rows(4))[:-8], "float32", "is not a safetensors file"),
    "no tensor": (sent(), "float32", "has 0 tensors"),
    "several": (sent(x=rows(2), y=rows(2)), "float32", "has 2 tensors"),
    "width": (sent(x=torch.zeros(3, 5)), "float32", r"shape \[3, 5\]; the model's embeddings are \[length, 6\]"),
    "one dimension": (sent(x=torch.zeros(6)), "float32", r"shape \[6\]"),
    "three dimensions": (sent(x=torch.zeros(1, 3, 6)), "float32", r"shape \[1, 3, 6\]"),
    "no rows": (sent(x=torch.zeros(0, 6)), "float32", r"shape \[0, 6\]"),
    "double": (sent(x=torch.zeros(2, 6).double()), "float32", "has dtype F64; it may be float32, float16, bfloat16"),
    "integers": (sent(x=torch.zeros(2, 6, dtype=torch.int64)), "float32", "has dtype I64"),
    "NaN": (sent(x=broken(17, float("nan"))), "float32", "is not finite in the model's float32: row 17"),
    "infinite": (sent(x=broken(2, float("-inf")).bfloat16()), "float32", "row 2"),
    "infinite half": (sent(x=broken(0, float("inf")).half()), "float32", "row 0"),
    "overflow": (sent(x=broken(5, 65520.0)), "float16", "is not finite in the model's float16: row 5"),
    "overflow of bfloat16": (sent(x=broken(5, 3.4e38)), "bfloat16", "row 5"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    text, dtype, why = REFUSED[name]
    with pytest.raises(RequestError, match=why) as error:
        embedded([from_base64(text)], info(dtype))
    assert error.value.param == "prompt_embeds"


def test_what_is_just_finite_is_taken() -> None:
    assert len(embedded([from_base64(sent(x=broken(5, 65519.0)))], info("float16"))) == 20


def test_too_long() -> None:
    assert len(from_arrays(([1], rows(LONGEST - 2)), info())) == LONGEST - 1
    with pytest.raises(ContextLengthExceeded, match=f"has {LONGEST} tokens"):
        from_arrays(([1], rows(LONGEST - 1)), info())


def test_other_prompts_are_checked_too() -> None:
    with pytest.raises(RequestError, match="names token 90"):
        from_arrays(([VOCAB], rows(1)), info())
    with pytest.raises(RequestError, match="has dtype float64"):
        from_arrays(np.zeros((2, SIZE)), info())
    with pytest.raises(RequestError, match=r"models\.some takes token ids alone"):
        from_arrays(rows(1), info(size=0))
    with pytest.raises(RequestError, match="the prompt has no tokens"):
        processor().sequences(EmbeddedPrompt([], []), SamplingParams(), RequestContext())


def processor() -> InputProcessor:
    tokenizer: Any = type("Tokenizer", (), {"eos_token_ids": (2,)})()
    return InputProcessor(tokenizer, info(), seed=0)


def test_log_probabilities_of_a_prompt_need_tokens() -> None:
    prompt = from_arrays(([1], rows(2)), info())
    with pytest.raises(RequestError, match="embeddings have not") as error:
        processor().sequences(prompt, SamplingParams(prompt_logprobs=0), RequestContext())
    assert error.value.param == "prompt_logprobs"
    first, second = processor().sequences(prompt, SamplingParams(n=2), RequestContext("a"))
    assert first.prompt_token_ids == [1, VOCAB, VOCAB]
    assert first.embeddings is second.embeddings
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(first), type=EngineRequest) == first


def cached(cache: BlockCache, prompt: EmbeddedPrompt) -> int | None:
    """Of how many tokens a request with ``prompt`` finds the content; computes the others."""
    tables = cache.new_tables(embeddings=prompt.runs)
    found = cache.admit(tables, prompt.token_ids, ahead=LONGEST)
    cache.commit(tables, prompt.token_ids, len(prompt))
    cache.release(tables)
    return found


def test_prefixes_are_found_by_content() -> None:
    cache = BlockCache(num_blocks=64, groups=(CacheGroup(4),))
    given = rows(14)

    def prompt(*parts: Any) -> EmbeddedPrompt:
        return from_arrays(parts, info())

    assert cached(cache, prompt(given)) == 0
    assert cached(cache, prompt(given)) == 12
    assert cached(cache, prompt(torch.cat((given, rows(5, 1))))) == 12
    assert cached(cache, prompt(given[:8], given[8:])) == 12
    assert cached(cache, prompt(given[:9])) == 8
    other = given.clone()
    other[6, 0] += 1
    assert cached(cache, prompt(other)) == 4
    assert cached(cache, prompt(given.half())) == 0
    assert cached(cache, prompt(given[1:])) == 0
    assert cached(cache, prompt([3, 4], given)) == 0
    assert cached(cache, prompt([3, 4], given)) == 12
    assert cached(cache, prompt([3, 5], given)) == 0


def request(slot: int, *runs: EmbeddingRun) -> NewRequest:
    return NewRequest(
        id=str(slot), slot=slot, token_ids=[], num_prompt_tokens=0, num_computed=0, block_ids=[[]],
        params=SamplingParams(), eos_token_ids=(), seed=0, embeddings=list(runs),
    )  # fmt: skip


def test_rows_of_steps() -> None:
    kept = GivenRows(torch.device("cpu"), torch.float32)
    first, second = rows(5, 1), rows(4, 2, torch.bfloat16)
    mixed = from_arrays(([1, 2], first, [3], second), info()).runs
    alone = from_arrays(rows(3, 3), info()).runs
    kept.update([], [request(2, *mixed), request(0), request(5, *alone)])
    step = [Work(slot=0, before=9, num_tokens=1), Work(slot=2, before=0, num_tokens=4)]
    found = kept.of(step)
    assert found is not None
    assert found.index.tolist() == [3, 4]
    assert torch.equal(found.rows, first[:2])
    assert kept.of(step[:1]) is None
    found = kept.of([Work(slot=5, before=0, num_tokens=2), Work(slot=2, before=4, num_tokens=6)])
    assert found is not None
    assert found.index.tolist() == [0, 1, 2, 3, 4, 6, 7]
    assert torch.equal(found.rows, torch.cat((rows(3, 3)[:2], first[2:], second[:2].float())))
    kept.update([2], [])
    assert kept.of([Work(slot=2, before=10, num_tokens=2)]) is None
    found = kept.of([Work(slot=5, before=2, num_tokens=1)])
    assert found is not None
    assert not kept._runs  # all were computed
    kept.update([], [request(5, *alone)])
    kept.update([5], [request(5)])
    assert kept.of([Work(slot=5, before=0, num_tokens=3)]) is None

"""The conformance check passes what is right and names what is wrong."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from llmk.api import IOContext, IOPrompt, RequestError
from llmk.testing.checkpoints import write_checkpoint
from llmk.testing.io_processors import check_io_processor, io_context

BODIES = [{"texts": ["a b", "the core"], "kind": "hidden"}, {"texts": ["a"], "kind": "logprobs"}]
BODIES += [{"texts": ["which blocks"], "kind": "text"}, {"texts": ["which blocks"], "kind": "last_hidden"}]
REFUSED = [{}, {"texts": "a", "kind": "text"}, {"texts": ["a"], "kind": "words"}]
KINDS = ("hidden", "logprobs", "text", "last_hidden")


class Sums:
    """Adds up whatever comes of texts."""

    def __init__(self, context: IOContext) -> None:
        self.context = context

    def open(self, body: Any) -> Any:
        texts, kind = body.get("texts"), body.get("kind")
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
            raise RequestError("texts must be a list of texts", param="texts")
        if kind not in KINDS:
            raise RequestError("kind is unknown", param="kind")
        return self.request([IOPrompt(prompt=text, returns=kind) for text in texts])

    def request(self, prompts: list[IOPrompt]) -> Any:
        return SumsRequest(prompts)


class SumsRequest:
    def __init__(self, prompts: list[IOPrompt]) -> None:
        self.prompts = prompts
        self.sums = [0.0 for _ in prompts]
        self.text = ""

    def take(self, output: Any) -> None:
        added = output.hidden.sum().item() if output.hidden is not None else sum(output.logprobs[1:])
        self.sums[output.prompt] += added
        self.text += output.text

    def answer(self) -> Any:
        return {"sums": self.sums, "text": self.text}


class KeepsRequests(Sums):
    kept: ClassVar[list[Any]] = []

    def request(self, prompts: list[IOPrompt]) -> Any:
        self.kept.append(SumsRequest(prompts))
        return self.kept[-1]


class Mixes(Sums):
    def __init__(self, context: IOContext) -> None:
        self.sums = [0.0] * 2

    def request(self, prompts: list[IOPrompt]) -> Any:
        request = SumsRequest(prompts)
        self.sums[:] = [0.0] * 2
        request.sums = self.sums
        return request


class DependsOnPieces(Sums):
    def request(self, prompts: list[IOPrompt]) -> Any:
        request = SumsRequest(prompts)
        take = SumsRequest.take

        class Counting(SumsRequest):
            def take(self, output: Any) -> None:
                take(self, output)
                self.sums[0] += 1.0

        request.__class__ = Counting
        return request


class RaisesOnGarbage(Sums):
    def open(self, body: Any) -> Any:
        return super().open({**body, "texts": body["texts"].copy()})


class Unsendable(Sums):
    def request(self, prompts: list[IOPrompt]) -> Any:
        class Odd(SumsRequest):
            def answer(self) -> Any:
                return object()

        return Odd(prompts)


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> IOContext:
    return io_context(write_checkpoint(tmp_path_factory.mktemp("tiny"), "qwen3"), color="red")


def test_a_good_processor_passes(context: IOContext) -> None:
    assert context.options == {"color": "red"}
    check_io_processor(Sums, context, BODIES, refused=REFUSED)


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (KeepsRequests, "dropped is still referred to"),
        (Mixes, "beside others it answers"),
        (DependsOnPieces, "in other pieces"),
        (RaisesOnGarbage, "not a RequestError"),
        (Unsendable, "can't be told as JSON"),
    ],
)
def test_what_is_wrong_is_named(context: IOContext, kind: Any, what: str) -> None:
    with pytest.raises(AssertionError, match=what):
        check_io_processor(kind, context, BODIES, refused=REFUSED)


def test_a_body_that_should_be_refused_and_is_not(context: IOContext) -> None:
    with pytest.raises(AssertionError, match="took"):
        check_io_processor(Sums, context, BODIES, refused=BODIES[:1])

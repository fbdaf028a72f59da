"""An IO processor that adds up whatever comes of texts, and ways to get one wrong."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from defects import Defect
from llmk.api import IOContext, IOPrompt, RequestError
from llmk_testing.checkpoints import write_checkpoint
from llmk_testing.suites.io_processor import IOExamples

BODIES = [{"texts": ["a b", "the core"], "kind": "hidden"}, {"texts": ["a b", "a"], "kind": "logprobs"}]
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
        self.sums[output.prompt] += float(output.hidden.sum()) if output.hidden is not None else self.total(output)
        self.text += output.text

    def total(self, output: Any) -> float:
        """Of the log-probabilities."""
        return sum(max(each, -1e4) for each in output.logprobs if each is not None)

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


class FirstOfAPiece(Sums):
    def request(self, prompts: list[IOPrompt]) -> Any:
        class Skipping(SumsRequest):
            def total(self, output: Any) -> float:
                return sum(output.logprobs[1:])

        return Skipping(prompts)


class Infinite(Sums):
    def request(self, prompts: list[IOPrompt]) -> Any:
        class Adding(SumsRequest):
            def total(self, output: Any) -> float:
                return sum(each for each in output.logprobs if each is not None)

        return Adding(prompts)


class Shares(Sums):
    def request(self, prompts: list[IOPrompt]) -> Any:
        class Sharing(SumsRequest):
            def answer(self) -> Any:
                weights = [math.exp(min(each, 0.0)) for each in self.sums]
                return {"sums": [weight / sum(weights) for weight in weights], "text": self.text}

        return Sharing(prompts)


class RaisesOnGarbage(Sums):
    def open(self, body: Any) -> Any:
        return super().open({**body, "texts": body["texts"].copy()})


class Unsendable(Sums):
    def request(self, prompts: list[IOPrompt]) -> Any:
        class Odd(SumsRequest):
            def answer(self) -> Any:
                return object()

        return Odd(prompts)


class Remembers(Sums):
    def __init__(self, context: IOContext) -> None:
        super().__init__(context)
        self.texts: set[str] = set()

    def request(self, prompts: list[IOPrompt]) -> Any:
        self.texts |= {str(prompt.prompt) for prompt in prompts}
        return super().request(prompts)


class NeedsAnOption(Sums):
    def __init__(self, context: IOContext) -> None:
        super().__init__(context)
        self.most = context.options["most"]


class PopsAnOption(Sums):
    def __init__(self, context: IOContext) -> None:
        super().__init__(context)
        self.most = context.options.pop("most", 4)  # type: ignore[attr-defined]


class NamesTheNext(Sums):
    def request(self, prompts: list[IOPrompt]) -> Any:
        named = [replace(prompt, param=f"texts[{at % 2}]") for at, prompt in enumerate(prompts, 1)]
        return super().request(named)


class NamesNoField(Sums):
    def open(self, body: Any) -> Any:
        try:
            return super().open(body)
        except RequestError as error:
            raise RequestError(str(error)) from error


class NotANumber(Sums):
    def request(self, prompts: list[IOPrompt]) -> Any:
        request = SumsRequest(prompts)
        request.sums = [float("nan") for _ in prompts]
        return request


class Samples(Sums):
    def request(self, prompts: list[IOPrompt]) -> Any:
        return super().request([replace(prompt, sampling={"max_length": 5}) for prompt in prompts])


class Sorts(Sums):
    def request(self, prompts: list[IOPrompt]) -> Any:
        class Sorting(SumsRequest):
            def take(self, output: Any) -> None:
                super().take(output)
                output.token_ids.sort()

        return Sorting(prompts)


def write(folder: Path) -> Path:
    return write_checkpoint(folder, "qwen3")


def needs_a_size(checkpoint: Any) -> Any:
    return checkpoint.config["hidden_size"] > 8


EXAMPLES = IOExamples(write=write, bodies=BODIES, refused=REFUSED)
TAKES_ALL = IOExamples(write=write, bodies=BODIES, refused=BODIES[:1])

WITH_OPTIONS = IOExamples(write=write, bodies=BODIES, refused=REFUSED, options={"most": 4})

ANSWER = "the answer is the same"
LIKELY = "no matter how likely texts are"
DEFECTS = (
    Defect("keeps-requests", "requests are held for ever", KeepsRequests, "a request that is dropped"),
    Defect("mixes", "requests share their state", Mixes, ANSWER),
    Defect("depends-on-pieces", "the answer depends on how outputs are cut", DependsOnPieces, ANSWER),
    Defect("first-of-a-piece", "the first token of each piece is skipped", FirstOfAPiece, ANSWER),
    Defect("infinite", "a token that is ruled out makes the answer infinite", Infinite, LIKELY),
    Defect("shares", "exponentials of low scores are 0, and their sum divides", Shares, LIKELY),
    Defect("raises-on-garbage", "a bad body raises KeyError", RaisesOnGarbage, "refused with RequestError"),
    Defect("unsendable", "the answer is no JSON", Unsendable, ANSWER),
    Defect("takes-all", "a bad body is served", {"examples": "TAKES_ALL"}, "refused with RequestError"),
    Defect("supports-raises", "an odd checkpoint raises", {"supports": needs_a_size}, "it says which checkpoints"),
    Defect("remembers", "texts are held for ever", Remembers, "what it keeps of requests"),
    Defect(
        "needs-an-option",
        "options that are left out raise",
        {"provider": NeedsAnOption, "examples": "WITH_OPTIONS"},
        "options may be left out",
    ),
    Defect(
        "pops-an-option",
        "the configuration's options are changed",
        {"provider": PopsAnOption, "examples": "WITH_OPTIONS"},
        "options may be left out",
    ),
    Defect("names-the-next", "errors name the field of another text", NamesTheNext, ANSWER),
    Defect("names-no-field", "a bad body is refused without its field", NamesNoField, "refused with RequestError"),
    Defect("not-a-number", "the answer has NaN", NotANumber, ANSWER),
    Defect("samples", "a sampling parameter is named that there is not", Samples, ANSWER),
    Defect("sorts", "the engine's tokens are changed", Sorts, ANSWER),
)

"""What the plugins of ``heron`` are tried on: oracles, by the plainest code, and answers with what they mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import exp, fsum, inf
from typing import Any

from torch import Tensor

from llmk.api import IOContext, IOOutput, IOPrompt, PolicyContext, RequestError, SchedulingPolicy, Ticket
from llmk_testing.checkpoints import write_checkpoint
from llmk_testing.logits_examples import LogitsExamples, Parameters
from llmk_testing.parser_example import ParserExample
from llmk_testing.policy_examples import PolicyExamples
from llmk_testing.suites.io_processor import IOExamples


class PlainShares(SchedulingPolicy):
    """Recent work by tenant, in the order of their last work, halved with each epoch."""

    def __init__(self, context: PolicyContext) -> None:
        self.weights = context.weights
        self.half_life = 64 * context.step_tokens
        self.recent: dict[str, int] = {}
        self.of_epoch = 0

    def share(self, tenant: str) -> float:
        """A tenant's work over its weight."""
        weight = self.weights.get(tenant, 1.0)
        return self.recent.get(tenant, 0) / weight if weight > 0 else inf

    def order(self, requests: Sequence[Ticket]) -> Iterator[Ticket]:
        """Again and again the next request of the tenant with the least share."""
        shares = {ticket.tenant: self.share(ticket.tenant) for ticket in requests}
        return self.taken({ticket: at for at, ticket in enumerate(requests)}, shares)

    def taken(self, position: dict[Ticket, int], shares: dict[str, float]) -> Iterator[Ticket]:
        """``position`` are the requests that are left."""
        waiting: dict[str, list[Ticket]] = {}
        for ticket in sorted(position, key=lambda ticket: (ticket.priority, position[ticket])):
            waiting.setdefault(ticket.tenant, []).append(ticket)
        while waiting:
            tenant = min(waiting, key=lambda each: (shares[each], position[waiting[each][0]]))
            yield waiting[tenant].pop(0)
            shares[tenant] = self.share(tenant)
            if not waiting[tenant]:
                del waiting[tenant]

    def victim(self, running: Sequence[Ticket]) -> Ticket:
        """The last of the least urgent of the tenant with the most."""
        most = max(self.share(ticket.tenant) for ticket in running)
        candidates = [ticket for ticket in running if self.share(ticket.tenant) == most]
        return max(reversed(candidates), key=lambda ticket: ticket.priority)

    def displaced(self, running: Sequence[Ticket], newcomer: Ticket) -> Ticket | None:
        """The last of the least urgent of the same tenant, if it is less urgent."""
        own = [ticket for ticket in running if ticket.tenant == newcomer.tenant and ticket.priority > newcomer.priority]
        return max(reversed(own), key=lambda ticket: ticket.priority) if own else None

    def computed(self, request: Ticket, num_tokens: int) -> None:
        """Adds, forgets all but the last 2048 tenants, and halves all if an epoch ends."""
        tokens = self.recent.pop(request.tenant, 0) + num_tokens
        if tokens:
            self.recent[request.tenant] = tokens
        self.of_epoch += num_tokens
        while self.of_epoch >= self.half_life:
            self.of_epoch -= self.half_life
            self.recent = {tenant: known // 2 for tenant, known in self.recent.items()}
        self.recent = dict(list(self.recent.items())[-2048:])


RECENT = PolicyExamples(oracle=PlainShares, weights=[{"a": 4.0, "b": 0.5}, {"a": 0.0}])


def without_repeats(logits: Tensor, tokens: Sequence[int], num_prompt_tokens: int, parameters: Parameters) -> Tensor:
    """The logits of one request, by the plainest code."""
    vocab_size, size = len(logits), parameters["ngram"]
    text = list(tokens if parameters.get("prompt", True) else tokens[num_prompt_tokens:])
    text = text[-parameters.get("window", len(text)) :] if text else []
    before = text[len(text) - size + 1 :]
    if len(text) < size or vocab_size in before:
        return logits
    repeats = {text[at] for at in range(size - 1, len(text)) if text[at - size + 1 : at] == before}
    repeats -= {vocab_size, *parameters.get("keep", ())}
    ids = sorted(repeats)
    changed = logits.clone()
    changed[ids] -= parameters.get("penalty", inf)
    return logits if changed.max() == -inf else changed


NO_REPEAT = LogitsExamples(
    parameters=[
        {"ngram": 1},
        {"ngram": 2},
        {"ngram": 3, "window": 20},
        {"ngram": 16},
        {"ngram": 1, "window": 1},
        {"ngram": 1, "window": 5, "penalty": 1.5},
        {"ngram": 2, "penalty": 100, "keep": [0, 3, 7]},
        {"ngram": 1, "keep": [1, 2, 3, 4, 5, 6], "prompt": False},
        {"ngram": 2, "window": 1 << 31, "keep": [], "prompt": True},
        {"ngram": 1, "penalty": 1e-3, "prompt": False, "window": 64},
        {"ngram": 1, "keep": [5] * 64},
    ],
    refused=[
        {},
        {"ngram": 0},
        {"ngram": 17},
        {"ngram": True},
        {"ngram": 2.0},
        {"ngram": None},
        {"ngram": 2, "window": 0},
        {"ngram": 2, "window": (1 << 31) + 1},
        {"ngram": 2, "window": None},
        {"ngram": 2, "penalty": 0},
        {"ngram": 2, "penalty": -1},
        {"ngram": 2, "penalty": 100.1},
        {"ngram": 2, "penalty": True},
        {"ngram": 2, "penalty": "1"},
        {"ngram": 2, "keep": 5},
        {"ngram": 2, "keep": [-1]},
        {"ngram": 2, "keep": [1 << 40]},
        {"ngram": 2, "keep": [True]},
        {"ngram": 2, "keep": ["a"]},
        {"ngram": 2, "keep": [5] * 65},
        {"ngram": 2, "prompt": 1},
        {"ngram": 2, "prompt": None},
        {"ngram": 2, "other": 1},
    ],
    expected=without_repeats,
)

Model = Callable[[IOPrompt], IOOutput]


def expected_choice(context: IOContext, body: Mapping[str, Any], model: Model) -> dict[str, Any]:
    """The answer to a body, by the plainest code."""
    tokenizer = context.tokenizer
    if body.keys() - {"question", "choices", "separator", "normalize", "baseline"}:
        raise RequestError("unknown field")
    whole, bare = tokenizer.encode("a"), tokenizer.encode("a", add_special_tokens=False)
    leading = whole[: whole.index(bare[0])]

    def sums(text: str) -> list[float]:
        return [behind(leading + tokenizer.encode(text, add_special_tokens=False), ids) for ids in continuations]

    def behind(before: list[int], ids: list[int]) -> float:
        logprobs = model(IOPrompt(prompt=before + ids, returns="logprobs")).logprobs[len(before) :]
        return fsum(max(-1e4, each) for each in logprobs if each is not None)

    texts = [body.get("separator", " ") + choice for choice in body["choices"]]
    continuations = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    found = sums(body["question"])
    calibrated = found
    if "baseline" in body:
        calibrated = [own - other for own, other in zip(found, sums(body["baseline"]), strict=True)]
    units = {
        "sum": [1 for _ in texts],
        "tokens": [len(ids) for ids in continuations],
        "bytes": [len(choice.encode()) for choice in body["choices"]],
    }[body.get("normalize", "sum")]
    scores = [own / unit for own, unit in zip(calibrated, units, strict=True)]
    weights = [exp(score - max(scores)) for score in scores]
    return {
        "choice": scores.index(max(scores)),
        "scores": [
            {"logprob": own, "tokens": len(ids), "score": score, "probability": weight / sum(weights)}
            for own, ids, score, weight in zip(found, continuations, scores, weights, strict=True)
        ],
    }


_BODY = {"question": "which blocks they own", "choices": ["a core", "a small core"]}
CHOICE = IOExamples(
    write=lambda folder: write_checkpoint(folder, "qwen3"),
    bodies=[
        _BODY,
        {**_BODY, "normalize": "tokens"},
        {**_BODY, "normalize": "bytes", "baseline": "the core", "separator": ""},
        {"question": "a", "choices": ["they own", "which", "blocks"], "normalize": "sum", "baseline": "a small"},
        {"question": "a small", "choices": ["core", "blocks", "own"], "separator": ": "},
    ],
    refused=[
        {},
        {"question": "a"},
        {"choices": ["a", "core"]},
        {**_BODY, "question": ""},
        {**_BODY, "question": 1},
        {**_BODY, "question": "\ud800"},
        {**_BODY, "choices": "a core"},
        {**_BODY, "choices": []},
        {**_BODY, "choices": ["a"]},
        {**_BODY, "choices": ["a", ""]},
        {**_BODY, "choices": ["a", 1]},
        {**_BODY, "choices": ["a", None, "core"]},
        {**_BODY, "choices": ["a"] * 9},
        {**_BODY, "separator": 1},
        {**_BODY, "separator": None},
        {**_BODY, "normalize": "chars"},
        {**_BODY, "normalize": ""},
        {**_BODY, "normalize": ["sum"]},
        {**_BODY, "baseline": ""},
        {**_BODY, "baseline": None},
        {**_BODY, "other": 1},
    ],
    options={"max_choices": 8},
    tolerance=1e-4,
    expected=expected_choice,
)


TABLES = (
    ParserExample(
        text='Let me see. [[call.weather]]\ncity = "Oslo"\ndays = [1, 2]\n[[end]] Done.',
        content="Let me see.  Done.",
        calls=[("weather", {"city": "Oslo", "days": [1, 2]})],
    ),
    ParserExample(
        text='[[call.first]]\n[[end]][[call.second]]\na = {"b": "[[end]]"}\n"a key" = null\n[[end]]',
        calls=[("first", {}), ("second", {"a": {"b": "[[end]]"}, "a key": None})],
    ),
    ParserExample(
        text='[[call.open]]\n\n  path="a\\u0062"  \nlines =\t[\n  1,\n  -2.5e+3\n]\r\n\n[[end]]\n',
        content="\n",
        calls=[("open", {"path": "ab", "lines": [1, -2500.0]})],
    ),
    ParserExample(
        text="[[call.a b]] [[call.]]\n [[call.a]]\nx = 1\nx = 2\n[[end]]",
        content="[[call.a b]] [[call.]]\n [[call.a]]\nx = 1\nx = 2\n[[end]]",
    ),
    ParserExample(
        text='[[call.a]]\nx = "no end\n[[call.b]]\ny = true\n[[end]]',
        content='[[call.a]]\nx = "no end\n',
        calls=[("b", {"y": True})],
    ),
    ParserExample(text='[[call.never_ended]]\nx = "a', content='[[call.never_ended]]\nx = "a'),
    ParserExample(text="[[[call.a]]\n[[end]]", content="[", calls=[("a", {})]),
)

"""Examples for the conformance kit: oracles by the plainest code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from llmk.api import IOContext, IOOutput, IOPrompt, PolicyContext, SchedulingPolicy, Ticket
from llmk_testing.checkpoints import write_checkpoint
from llmk_testing.logits_examples import LogitsExamples, Parameters
from llmk_testing.parser_example import ParserExample
from llmk_testing.policy_examples import PolicyExamples
from llmk_testing.quantization_example import QuantizationExample
from llmk_testing.suites.io_processor import IOExamples


class PlainLanes(SchedulingPolicy):
    """The history of those that were served decides."""

    def __init__(self, context: PolicyContext) -> None:
        self._served: list[Ticket] = []
        self._last: list[Ticket] = []

    def order(self, requests: Sequence[Ticket]) -> Iterator[Ticket]:
        """One after the other."""
        left = list(requests)
        while left:
            long = [ticket for ticket in left if ticket.num_prompt_tokens > 32]
            short = [ticket for ticket in left if ticket.num_prompt_tokens <= 32]
            behind = [ticket.num_prompt_tokens > 32 for ticket in self._served[-4:]]
            turn = len(behind) == 4 and not any(behind)
            chosen = long[0] if long and (turn or not short) else short[0]
            left.remove(chosen)
            self._last = [chosen]
            yield chosen

    def victim(self, running: Sequence[Ticket]) -> Ticket:
        """By arrival."""
        long = [ticket for ticket in running if ticket.num_prompt_tokens > 32]
        return max(long or running, key=lambda ticket: ticket.arrival)

    def displaced(self, running: Sequence[Ticket], newcomer: Ticket) -> Ticket | None:
        """If most are long."""
        long = [ticket for ticket in running if ticket.num_prompt_tokens > 32]
        most = len(long) > len(running) / 2
        return max(long, key=lambda ticket: ticket.arrival) if most and newcomer.num_prompt_tokens <= 32 else None

    def computed(self, request: Ticket, num_tokens: int) -> None:
        """Remembers who was chosen last."""
        if request in self._last:
            self._last.clear()
            self._served.append(request)


LANES = PolicyExamples(oracle=PlainLanes)


def banned(logits: Tensor, tokens: Sequence[int], num_prompt_tokens: int, parameters: Parameters) -> Tensor:
    """Looks at every place of the tokens so far."""
    size = parameters["size"]
    own = list(tokens[num_prompt_tokens if parameters.get("output") else 0 :])
    last = own[len(own) - size + 1 :] if len(own) >= size - 1 else None
    for at in range(len(own) - size + 1):
        if own[at : at + size - 1] == last:
            logits[own[at + size - 1]] = -torch.inf
    return logits


NO_REPEATS = LogitsExamples(
    parameters=[{"size": 2}, {"size": 3}, {"size": 2, "output": True}, {"size": 8}, {"size": 3, "output": False}],
    refused=[
        {},
        {"size": 1},
        {"size": 9},
        {"size": 2.0},
        {"size": True},
        {"size": 2, "output": 1},
        {"size": 2, "n": 1},
    ],
    expected=banned,
)


def ranked(context: IOContext, body: Mapping[str, Any], model: Callable[[IOPrompt], IOOutput]) -> Any:
    """One document after the other."""
    tokens, means = 0, []
    for text in (body["query"], *body["documents"]):
        whole = model(IOPrompt(prompt=text, returns="hidden"))
        assert whole.hidden is not None
        tokens += len(whole.token_ids)
        means.append(whole.hidden.double().mean(0))
    query = means[0]
    scores = [float(query @ mean / query.norm() / mean.norm()) for mean in means[1:]]
    results = [{"index": number, "score": score} for number, score in enumerate(scores)]
    results.sort(key=lambda result: result["score"], reverse=True)
    return {"results": results[: body.get("top")], "tokens": tokens}


_DOCUMENTS = ["which blocks they own", "a small core", "a", "a core"]
SIMILAR = IOExamples(
    write=lambda folder: write_checkpoint(folder, "qwen3"),
    bodies=[
        {"query": "a core", "documents": _DOCUMENTS},
        {"query": "b", "documents": ["a"]},
        {"query": "a", "documents": _DOCUMENTS[:3], "top": 2},
        {"query": "a", "documents": ["b c", "a", "b c"], "top": 9},
    ],
    refused=[
        {},
        {"query": "a"},
        {"documents": ["a"]},
        {"query": "", "documents": ["a"]},
        {"query": "a", "documents": []},
        {"query": "a", "documents": ["a", ""]},
        {"query": "a", "documents": ["a", 1]},
        {"query": "a", "documents": "a"},
        {"query": "a", "documents": ["a"] * 5},
        {"query": "a", "documents": ["a"], "top": 0},
        {"query": "a", "documents": ["a"], "top": True},
        {"query": "a", "documents": ["a"], "limit": 1},
    ],
    options={"most": 4},
    expected=ranked,
)

LEAVES = (
    ParserExample(
        text='I look.\n@call weather\n@arg city\n"Oslo"\n@arg days\n[1, 2]\n@end\nDone.',
        content="I look.\nDone.",
        calls=[("weather", {"city": "Oslo", "days": [1, 2]})],
    ),
    ParserExample(text="@call now\n@end", calls=[("now", {})]),
    ParserExample(text="@call now\n@end\n@call then\n@end\n", calls=[("now", {}), ("then", {})]),
    ParserExample(
        text="Write to me@call.org, or @call me\nmaybe\n@end", content="Write to me@call.org, or @call me\nmaybe\n@end"
    ),
    ParserExample(text="@call cut\n@arg a\n1\n", content="@call cut\n@arg a\n1\n"),
    ParserExample(text="@call bad\n@arg a\n{\n@end\n@ca", content="@call bad\n@arg a\n{\n@end\n@ca"),
)


def stored(weight: Tensor) -> dict[str, Tensor]:
    """Group by group."""
    outputs, inputs = weight.shape
    packed = torch.empty(outputs, inputs // 2, dtype=torch.uint8)
    scales, zeros = torch.ones(outputs, inputs // 64), torch.zeros(outputs, inputs // 64)
    for at in range(inputs // 64):
        group = weight[:, at * 64 : at * 64 + 64].float()
        least, most = (
            group.min(1).values.minimum(torch.zeros(outputs)),
            group.max(1).values.maximum(torch.zeros(outputs)),
        )
        step = (most - least) / 15
        step[step == 0] = 1
        zero = torch.round(-least / step)
        values = torch.round(group / step[:, None] + zero[:, None]).clip(0, 15)
        packed[:, at * 32 : at * 32 + 32] = (values[:, ::2] + 16 * values[:, 1::2]).byte()
        scales[:, at], zeros[:, at] = step, zero
    return {"weight_packed": packed, "weight_scale": scales, "weight_zero_point": zeros.byte()}


def restored(parameters: dict[str, Tensor]) -> Tensor:
    """The weight that the parameters represent."""
    packed = parameters["weight_packed"].int()
    values = torch.stack([packed % 16, packed // 16], dim=2).flatten(1).float()
    zero = parameters["weight_zero_point"].float().repeat_interleave(64, 1)
    return (values - zero) * parameters["weight_scale"].float().repeat_interleave(64, 1)


HALVED = (
    QuantizationExample(
        name="dense",
        model_type="qwen3",
        model_config={"num_hidden_layers": 2, "intermediate_size": 128},
        stored=stored,
        restored=restored,
        error=0.15,
        logits_error=0.6,
    ),
)

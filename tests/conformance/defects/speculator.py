"""Speculators that make mistakes, on the host and on the device."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from defects import Defect
from llmk.api import DeviceSpeculator, Speculator, SpeculatorContext
from llmk_testing.speculator_examples import Draft, SpeculatorExamples


class Good(Speculator):
    """Drafts what followed the last token when it occurred before."""

    def __init__(self, context: SpeculatorContext) -> None:
        self._vocab = context.vocab_size
        self._read: dict[str, int] = {}
        self._followed: dict[str, dict[int, int]] = {}

    def propose(self, request: str, tokens: Sequence[int], most: int) -> Sequence[int]:
        followed = self._followed.setdefault(request, {})
        for at in range(self._read.get(request, 1), len(tokens)):
            followed[tokens[at - 1]] = tokens[at]
        self._read[request] = len(tokens)
        drafts: list[int] = []
        draft = followed.get(tokens[-1], self._vocab)
        while len(drafts) < most and draft < self._vocab:
            drafts.append(draft)
            draft = followed.get(draft, self._vocab)
        return drafts

    def leave(self, request: str) -> None:
        self._read.pop(request, None)
        self._followed.pop(request, None)


class Leaking(Good):
    """Has one table for all requests."""

    def __init__(self, context: SpeculatorContext) -> None:
        super().__init__(context)
        self._all: dict[int, int] = {}

    def propose(self, request: str, tokens: Sequence[int], most: int) -> Sequence[int]:
        self._followed[request] = self._all
        return super().propose(request, tokens, most)


class Keeping(Good):
    """Keeps the table of a request that ended."""

    def leave(self, request: str) -> None:
        self._read.pop(request, None)


class Idle(Good):
    """Frees what it has of requests that it could draft for."""

    def leave(self, request: str) -> None:
        if self._followed.get(request):
            super().leave(request)


class Hoarding(Good):
    """Keeps the tokens of all requests under new names."""

    def __init__(self, context: SpeculatorContext) -> None:
        super().__init__(context)
        self._texts: list[list[int]] = []

    def propose(self, request: str, tokens: Sequence[int], most: int) -> Sequence[int]:
        self._texts.append(list(tokens))
        return super().propose(request, tokens, most)


class Foreign(Good):
    """Drafts in a larger vocabulary."""

    def propose(self, request: str, tokens: Sequence[int], most: int) -> Sequence[int]:
        return [draft + 1 for draft in super().propose(request, tokens, most)]


class Eager(Good):
    """Drafts one more than is wanted."""

    def propose(self, request: str, tokens: Sequence[int], most: int) -> Sequence[int]:
        return super().propose(request, tokens, most + 1)


class Nothing(Good):
    """Returns no sequence where there are no drafts."""

    def propose(self, request: str, tokens: Sequence[int], most: int) -> Sequence[int]:
        return super().propose(request, tokens, most) or None  # type: ignore[return-value]


class Writing(Good):
    """Appends drafts to the request's tokens while it makes them."""

    def propose(self, request: str, tokens: Sequence[int], most: int) -> Sequence[int]:
        drafts = super().propose(request, tokens, most)
        tokens.extend(drafts)  # type: ignore[attr-defined]
        return drafts


class Dice(Good):
    """Drafts fewer tokens now and then, by the process's generator."""

    def propose(self, request: str, tokens: Sequence[int], most: int) -> Sequence[int]:
        return super().propose(request, tokens, random.randint(1, most))


class Counting(Good):
    """Drafts more from call to call, so that a request that resumes elsewhere gets fewer."""

    def __init__(self, context: SpeculatorContext) -> None:
        super().__init__(context)
        self._calls: dict[str, int] = {}

    def propose(self, request: str, tokens: Sequence[int], most: int) -> Sequence[int]:
        self._calls[request] = calls = self._calls.get(request, 0) + 1
        return super().propose(request, tokens, min(most, calls))

    def leave(self, request: str) -> None:
        super().leave(request)
        self._calls.pop(request, None)


class Rereading(Good):
    """Reads all tokens in each call."""

    def propose(self, request: str, tokens: Sequence[int], most: int) -> Sequence[int]:
        self._read[request] = 1
        return super().propose(request, tokens, most)


class Silent(Good):
    """Never drafts."""

    def propose(self, request: str, tokens: Sequence[int], most: int) -> Sequence[int]:
        return ()


class Aliasing(Good):
    """Keeps the engine's list, and takes what it lacks for new tokens."""

    def __init__(self, context: SpeculatorContext) -> None:
        super().__init__(context)
        self._texts: dict[str, Sequence[int]] = {}

    def propose(self, request: str, tokens: Sequence[int], most: int) -> Sequence[int]:
        self._read[request] = max(1, len(self._texts.get(request, ())))
        self._texts[request] = tokens
        return super().propose(request, tokens, most)

    def leave(self, request: str) -> None:
        super().leave(request)
        self._texts.pop(request, None)


class Once(Good):
    """Drafts for new tokens alone."""

    def propose(self, request: str, tokens: Sequence[int], most: int) -> Sequence[int]:
        known = self._read.get(request) == len(tokens)
        return super().propose(request, tokens, most)[: 1 if known else most]


class Packed(Good):
    """Takes ids for numbers of 16 bits."""

    def propose(self, request: str, tokens: Sequence[int], most: int) -> Sequence[int]:
        drafts = super().propose(request, [token & 0xFFFF for token in tokens], most)
        last = tokens[-1] & ~0xFFFF
        return [draft | last for draft in drafts if draft | last < self._vocab]


class Seeding(Good):
    """Seeds the process's generator."""

    def propose(self, request: str, tokens: Sequence[int], most: int) -> Sequence[int]:
        random.seed(len(tokens))
        return super().propose(request, tokens, most)


class AtMostTwo(Good):
    """Drafts two tokens at most."""

    def propose(self, request: str, tokens: Sequence[int], most: int) -> Sequence[int]:
        return super().propose(request, tokens, min(most, 2))


class AtMostEight(Good):
    """Drafts as many tokens as some other number of it says."""

    def propose(self, request: str, tokens: Sequence[int], most: int) -> Sequence[int]:
        return super().propose(request, tokens, min(most, 8))


def _plain(context: SpeculatorContext) -> Draft:
    def draft(tokens: Sequence[int], most: int) -> list[int]:
        drafts: list[int] = []
        while len(drafts) < most:
            last = drafts[-1] if drafts else tokens[-1]
            followed = [tokens[at] for at in range(1, len(tokens)) if tokens[at - 1] == last]
            if not followed or followed[-1] >= context.vocab_size:
                break
            drafts.append(followed[-1])
        return drafts

    return draft


def _plain_on_device(context: SpeculatorContext) -> Draft:
    def draft(tokens: Sequence[int], most: int) -> list[int]:
        *before, last = tokens
        places = [place for place, token in enumerate(before) if token == last]
        return list(tokens[places[-1] + 1 :][:most]) if places else []

    return draft


EXAMPLES = SpeculatorExamples(oracle=_plain)
DEVICE_EXAMPLES = SpeculatorExamples(oracle=_plain_on_device)


class GoodOnDevice(DeviceSpeculator):
    """Drafts what followed the latest earlier occurrence of the last token."""

    counter = torch.int64
    """What counts places."""

    def __init__(self, context: SpeculatorContext) -> None:
        self._vocab = context.vocab_size

    def propose(self, tokens: Tensor, known: Tensor, slots: Tensor, width: int) -> Tensor:
        rows = tokens[slots.clamp(min=0)]
        place = torch.arange(rows.shape[1], device=rows.device).to(self.counter)
        end = known.clamp(min=1)[:, None] - 1
        best = torch.where((rows == rows.gather(1, end)) & (place < end), place, -1).amax(1, keepdim=True).long()
        at = best + 1 + torch.arange(width, device=rows.device)
        drafts = rows.gather(1, at.clamp(max=rows.shape[1] - 1)).long()
        return torch.where((best >= 0) & (at <= end), drafts, -1)


class Late(GoodOnDevice):
    """Drafts what comes one token later."""

    def propose(self, tokens: Tensor, known: Tensor, slots: Tensor, width: int) -> Tensor:
        drafts = super().propose(tokens, known, slots, width + 1)
        return torch.where(drafts[:, :1] >= 0, drafts[:, 1:], -1)


class FirstWidth(GoodOnDevice):
    """Drafts as many as in the first call."""

    first = 0

    def propose(self, tokens: Tensor, known: Tensor, slots: Tensor, width: int) -> Tensor:
        self.first = self.first or width
        drafts = super().propose(tokens, known, slots, width)
        return torch.where(torch.arange(width, device=drafts.device) < self.first, drafts, -1)


class Beyond(GoodOnDevice):
    """Finds the last token in tokens that are not known."""

    def propose(self, tokens: Tensor, known: Tensor, slots: Tensor, width: int) -> Tensor:
        return super().propose(tokens, torch.full_like(known, tokens.shape[1] - 8), slots, width)


class Narrow(GoodOnDevice):
    """Drafts one token, no matter how many are wanted."""

    def propose(self, tokens: Tensor, known: Tensor, slots: Tensor, width: int) -> Tensor:
        return super().propose(tokens, known, slots, 1)


class Small(GoodOnDevice):
    """Drafts int32."""

    def propose(self, tokens: Tensor, known: Tensor, slots: Tensor, width: int) -> Tensor:
        return super().propose(tokens, known, slots, width).int()


class ByRow(GoodOnDevice):
    """Takes a request's place in the step for its slot."""

    def propose(self, tokens: Tensor, known: Tensor, slots: Tensor, width: int) -> Tensor:
        return super().propose(tokens, known, torch.arange(len(slots), device=slots.device), width)


class Neighbour(GoodOnDevice):
    """Drafts for a request without a match what the batch's most usual draft is."""

    def propose(self, tokens: Tensor, known: Tensor, slots: Tensor, width: int) -> Tensor:
        drafts = super().propose(tokens, known, slots, width)
        return torch.where(drafts < 0, drafts.amax(0, keepdim=True), drafts)


class Remembering(GoodOnDevice):
    """Drafts where nothing matches what it drafted there in the last step."""

    def __init__(self, context: SpeculatorContext) -> None:
        super().__init__(context)
        self._last: Tensor | None = None

    def propose(self, tokens: Tensor, known: Tensor, slots: Tensor, width: int) -> Tensor:
        drafts = super().propose(tokens, known, slots, width)
        if self._last is not None and self._last.shape == drafts.shape:
            drafts = torch.where(drafts < 0, self._last, drafts)
        self._last = drafts
        return drafts


class Scribbling(GoodOnDevice):
    """Writes drafts behind the known tokens, which the engine does itself."""

    def propose(self, tokens: Tensor, known: Tensor, slots: Tensor, width: int) -> Tensor:
        drafts = super().propose(tokens, known, slots, width)
        tokens[slots.clamp(min=0), known.clamp(max=tokens.shape[1] - 1)] = drafts[:, 0].int()
        return drafts


class Waiting(GoodOnDevice):
    """Cuts the comparison at the longest request, whose length it reads back."""

    def propose(self, tokens: Tensor, known: Tensor, slots: Tensor, width: int) -> Tensor:
        return super().propose(tokens[:, : int(known.max()) + 1], known, slots, width)


class Listing(GoodOnDevice):
    """Makes the places of drafts of a list on the host, which is copied to the device."""

    def propose(self, tokens: Tensor, known: Tensor, slots: Tensor, width: int) -> Tensor:
        places = torch.tensor([*range(width)], device=tokens.device)
        return super().propose(tokens, known, slots, width).gather(1, places.expand(len(slots), width))


class Masked(GoodOnDevice):
    """Picks the rows of requests by a mask, whose number the host waits for."""

    def propose(self, tokens: Tensor, known: Tensor, slots: Tensor, width: int) -> Tensor:
        drafts, real = super().propose(tokens, known, slots, width), slots >= 0
        found = torch.full_like(drafts, -1)
        found[real] = drafts[real]
        return found


class Padded(GoodOnDevice):
    """Skips padding, so that the rows are fewer than the requests."""

    def propose(self, tokens: Tensor, known: Tensor, slots: Tensor, width: int) -> Tensor:
        return super().propose(tokens, known[slots >= 0], slots[slots >= 0], width)


class Short(GoodOnDevice):
    counter = torch.int16


class Ahead(GoodOnDevice):
    """Looks at the places that drafts go to, also behind the longest request's end."""

    def propose(self, tokens: Tensor, known: Tensor, slots: Tensor, width: int) -> Tensor:
        places = known[:, None] + torch.arange(width, device=slots.device)
        tokens[slots.clamp(min=0)].gather(1, places)
        return super().propose(tokens, known, slots, width)


class Trailing(GoodOnDevice):
    """Expects padding behind all requests."""

    def propose(self, tokens: Tensor, known: Tensor, slots: Tensor, width: int) -> Tensor:
        order = (slots < 0).long().argsort(stable=True)
        return super().propose(tokens, known[order], slots[order], width)


class Buffered(GoodOnDevice):
    """Has one buffer for the drafts of all steps of a shape."""

    def __init__(self, context: SpeculatorContext) -> None:
        super().__init__(context)
        self._buffers: dict[tuple[int, ...], Tensor] = {}

    def propose(self, tokens: Tensor, known: Tensor, slots: Tensor, width: int) -> Tensor:
        drafts = super().propose(tokens, known, slots, width)
        return self._buffers.setdefault(tuple(drafts.shape), drafts.clone()).copy_(drafts)


class Piling(GoodOnDevice):
    """Keeps the places of each number of rows."""

    def __init__(self, context: SpeculatorContext) -> None:
        super().__init__(context)
        self._rows: dict[int, Tensor] = {}

    def propose(self, tokens: Tensor, known: Tensor, slots: Tensor, width: int) -> Tensor:
        self._rows.setdefault(len(slots), torch.arange(len(slots), device=slots.device))
        return super().propose(tokens, known, slots, width)


class Fewer(GoodOnDevice):
    """Drafts half of what it knows."""

    def propose(self, tokens: Tensor, known: Tensor, slots: Tensor, width: int) -> Tensor:
        drafts = super().propose(tokens, known, slots, width)
        return torch.where(torch.arange(width, device=drafts.device) < 3, drafts, -1)


APART, RESUMED = "depend only on the request's tokens", "a request that resumes elsewhere"
AGAIN, ORACLE, WIDE = "is drafted for again", "its oracle", "beyond 16 bits"
DRAFTS, SHAPE = "token ids of the vocabulary", "int64 of the requests and the width"
DEFECTS = (
    Defect("leaking", "drafts are made of other requests' tokens", Leaking, APART),
    Defect("keeping", "an id that is used again has the former request's state", Keeping, "used again"),
    Defect("hoarding", "tokens of requests that ended are kept", Hoarding, "freed with it"),
    Defect("idle", "state of requests that nothing could be drafted for stays", Idle, "freed with it"),
    Defect("foreign", "ids outside of the vocabulary are drafted", Foreign, DRAFTS),
    Defect("eager", "more is drafted than is wanted", Eager, DRAFTS),
    Defect("nothing", "what is returned is not a sequence", Nothing, DRAFTS),
    Defect("writing", "the request's tokens are changed", Writing, "tokens stay as they are"),
    Defect("dice", "drafts are random", Dice, "the same tokens give the same drafts"),
    Defect("counting", "drafts depend on the calls, and are others after a restart", Counting, RESUMED),
    Defect("rereading", "a call takes time in proportion to all tokens", Rereading, "in proportion"),
    Defect("silent", "nothing is ever drafted", Silent, "something is drafted"),
    Defect("aliasing", "the engine's list, which grows, is kept and compared with itself", Aliasing, AGAIN),
    Defect("once", "another call with the same tokens gets other drafts", Once, AGAIN),
    Defect("packed", "ids that differ by 65,536 are one", Packed, WIDE),
    Defect("seeding", "the process's random generator is seeded", Seeding, DRAFTS),
    Defect("at-most-two", "fewer drafts are made than the rule says", AtMostTwo, ORACLE),
    Defect("at-most-eight", "drafts are bounded by another number than that of the call", AtMostEight, ORACLE),
)
DEVICE_DEFECTS = (
    Defect("late", "drafts are those of the position after", Late, "something is drafted"),
    Defect("first-width", "the width of the first call is kept", FirstWidth, "nothing is kept"),
    Defect("beyond", "tokens beyond the known ones are used", Beyond, "beyond the known ones"),
    Defect("narrow", "fewer columns are returned than the width", Narrow, SHAPE),
    Defect("small", "drafts are int32", Small, SHAPE),
    Defect("by-row", "a row of the step is taken for a slot", ByRow, APART),
    Defect("neighbour", "drafts are made of other requests' tokens", Neighbour, APART),
    Defect("remembering", "drafts of the last step are returned again", Remembering, "nothing is kept"),
    Defect("scribbling", "the batch's tokens are changed", Scribbling, "stay as they are"),
    Defect("waiting", "the host waits for the device", Waiting, "nothing waits"),
    Defect("listing", "an index is made on the host in each call", Listing, "nothing waits"),
    Defect("masked", "rows are picked by a mask, so that the host waits for their number", Masked, "nothing waits"),
    Defect("padded", "padding has no row", Padded, "padding changes nothing"),
    Defect("trailing", "padding between requests moves them", Trailing, "padding changes nothing"),
    Defect("short", "places are counted in 16 bits", Short, WIDE),
    Defect("ahead", "places behind the longest request are read", Ahead, SHAPE),
    Defect("buffered", "drafts are overwritten by the next call", Buffered, "nothing is kept"),
    Defect("piling", "a tensor is kept for each number of rows", Piling, "forgets its calls"),
    Defect("fewer", "fewer drafts are made than the rule says", Fewer, ORACLE),
)

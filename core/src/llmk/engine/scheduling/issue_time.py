"""When to issue the next step while one runs: early enough that the device does not wait for it, and no earlier, so
that requests that arrive meanwhile are part of it."""

from __future__ import annotations

from collections import deque

_RECENT = 8
"""Steps of a size that are remembered, of which the fastest counts: a step that is issued late costs time of the
device, one that is issued early only time of a request that just arrives."""
_SIZES = 512
"""Sizes that are remembered."""
_LATE = 0.9
"""Of what was relied upon, what is remembered of a step that ended before the next was issued, at an unknown time."""
_SHARE = 0.95
"""Of the expected time, what is relied upon."""
_RECENT_PROMPTS = 32
"""Steps with prompts that are remembered. They differ more."""
_MARGIN = 0.0003
"""Seconds that the host may be late, besides twice what it usually takes to issue a step."""
_WEIGHT = 0.1
"""Of the latest step in what the host usually takes."""


class IssueTime:
    """Expects steps to take as long as recent ones of about as many tokens; those with prompts, of which few have the
    same size, the share of an estimate (``expected``, 0: there is none) that recent ones took. All times are seconds of
    one clock."""

    def __init__(self) -> None:
        self._recent: dict[int, deque[float]] = {}
        self._shares: deque[float] = deque(maxlen=_RECENT_PROMPTS)
        self._host: dict[bool, float] = {}
        """What the host takes for a step, without prompts and with them: these may have to be issued kernel by kernel,
        which is to happen while the device runs the step before."""

    def take(self, num_tokens: int, seconds: float, *, expected: float = 0.0) -> None:
        """Takes note of what a step took."""
        if expected:
            self._shares.append(seconds / expected)
            return
        size = _size(num_tokens)
        if size not in self._recent and len(self._recent) >= _SIZES:
            self._recent.pop(next(iter(self._recent)))
        self._recent.setdefault(size, deque(maxlen=_RECENT)).append(seconds)

    def take_late(self, num_tokens: int, *, expected: float = 0.0) -> None:
        """Takes note that a step ended before the next was issued, which was put off for too long."""
        if relied := self._expect(num_tokens, expected):
            self.take(num_tokens, _LATE * relied, expected=expected)

    def take_host(self, seconds: float, *, prompts: bool) -> None:
        """Takes note of what the host took for a step."""
        usual = self._host.get(prompts, seconds)
        self._host[prompts] = usual + _WEIGHT * (seconds - usual)

    def spare(self, num_tokens: int, started: float, now: float, *, prompts: bool, expected: float = 0.0) -> float:
        """Seconds until the step after the one that runs must be issued, which has ``num_tokens`` and ``started``
        then. ``prompts``: the next one may compute some. 0 where it is not known how long such steps take."""
        seconds, host = self._expect(num_tokens, expected), self._host.get(prompts)
        if not seconds or host is None:
            return 0.0
        return max(0.0, started + _SHARE * seconds - 2 * host - _MARGIN - now)

    def _expect(self, num_tokens: int, expected: float) -> float:
        """Seconds; 0: not known."""
        if expected:
            return expected * min(self._shares, default=0.0)
        return min(self._recent.get(_size(num_tokens), ()), default=0.0)


def _size(num_tokens: int) -> int:
    """The same for numbers that differ by less than an eighth."""
    step = 1 << max(0, num_tokens.bit_length() - 4)
    return num_tokens // step * step

"""The results of comparing kernels with their shadows: read back from the device, counted, and logged."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import torch

from llmk.engine.device.transfer import to_host
from llmk.engine.wire.request import ShadowCount, add_counts
from llmk.nn.shadow import ShadowComparison, Shadows
from llmk.reference.compare import tolerance

logger = logging.getLogger(__name__)

QUIET_SECONDS = 60.0
"""How long nothing more is logged about a kernel and a shadow that differ, at one site."""


class ShadowComparisons:
    """Reads the comparisons of one process's steps.

    ``limit`` is the relative error up to which two kernels agree.
    """

    def __init__(self, shadows: Shadows, dtype: str) -> None:
        self.shadows = shadows
        self.limit = tolerance(dtype)
        self._quiet: dict[tuple[str, ...], float] = {}
        """Until when nothing is logged about a pair."""

    def issued(self) -> PendingComparison | None:
        """Those of the step that was just issued, on their way to the host; ``None`` where there are none."""
        compared = self.shadows.take()
        return PendingComparison(self, compared) if compared else None

    def count(self, compared: Sequence[ShadowComparison], errors: Sequence[float]) -> list[ShadowCount]:
        """Adds up, by site and pair, and logs what differs."""
        counts: list[ShadowCount] = []
        left = iter(errors)
        for each in compared:
            error = None if each.error is None else next(left)
            one = ShadowCount(each.kind, each.site, *each.pair)
            if error is None:
                one.failures = 1
            else:
                one.compared, one.diverged, one.largest = 1, int(not error <= self.limit), error
            if one.diverged:
                self._log(each, one)
            add_counts(counts, [one])
        return counts

    def _log(self, compared: ShadowComparison, one: ShadowCount) -> None:
        now, key = time.monotonic(), (one.kind, one.site, one.kernel, one.shadow)
        if now < self._quiet.get(key, 0.0):
            return
        self._quiet[key] = now + QUIET_SECONDS
        results = ", ".join(f"{shape} {dtype}" for shape, dtype in compared.results)
        text = (
            "%s site %s: the shadow %s differs from %s by %.1e (2-norm, relative; %.0e is rounding) in %s; "
            "answers are those of %s; no more of this for %.0f s"
        )
        logger.warning(
            text, *key[:2], one.shadow, one.kernel, one.largest, self.limit, results, one.kernel, QUIET_SECONDS
        )


class PendingComparison:
    """The comparisons of a step that was issued. They can be read once an event made after this has passed."""

    def __init__(self, comparisons: ShadowComparisons, compared: Sequence[ShadowComparison]) -> None:
        self._comparisons = comparisons
        self._compared = compared
        errors = [each.error for each in compared if each.error is not None]
        self._errors = to_host(torch.stack(errors)) if errors else None

    def result(self) -> list[ShadowCount]:
        """Reads them."""
        errors = [] if self._errors is None else self._errors.tolist()
        return self._comparisons.count(self._compared, errors)

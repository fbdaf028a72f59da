"""Shadows: kernels that run alongside the chosen ones on live traffic. They get copies of the arguments, their results
are compared, and they never change an answer.

An exception in a shadow disables that shadow; it never fails the step.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor

from llmk.reference.compare import relative_error, tensors_of

if TYPE_CHECKING:
    from llmk.api import AttentionBackend, CacheStep, Choice, Shadow

T = TypeVar("T")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ShadowComparison:
    """The comparison of one call. If ``error`` is ``None``, the shadow failed."""

    kind: str
    site: str
    pair: tuple[str, str]
    """Ids of the chosen kernel and of its shadow."""
    error: Tensor | None
    """Relative error, float32 ``[]``, see :func:`~llmk.reference.compare.relative_error`."""
    results: tuple[tuple[list[int], str], ...] = ()
    """Shapes and dtypes of the results that were compared."""


class Shadows:
    """State that the shadows of one process share.

    Attributes:
        always: whether every step is compared and none is reported, as during warm-up.
        draw: the step's random number; kernels with a higher rate are compared in this step.
        caches: the shadows' own caches, by attention site and ``id`` of the layer's cache.
        backends: the attention backends of those caches, by attention site.
        metas: the attention metadata that those backends prepared for the step, by attention site and ``id`` of the
            chosen backend's metadata.
        weights: by ``id`` of the chosen kernel's prepared weights: these weights, and the shadow's.
    """

    def __init__(self, seed: int = 0) -> None:
        self.always = False
        self.draw = 1.0
        self.caches: dict[tuple[str, int], Tensor] = {}
        self.backends: dict[str, AttentionBackend] = {}
        self.metas: dict[tuple[str, int], Any] = {}
        self.weights: dict[int, tuple[Any, Any]] = {}
        self._rate = 0.0
        self._compared: list[ShadowComparison] = []
        self._random = random.Random(seed)

    def start_step(self) -> bool:
        """Starts a step; returns whether any kernel is compared in it. Processes with equal seeds compare the same
        steps."""
        self._compared = [each for each in self._compared if each.error is None]
        self.metas.clear()
        self.draw = 0.0 if self.always else self._random.random()
        return self.draw < self._rate

    def shadow_cache(self, site: str, cache: Tensor, meta: Any) -> tuple[Tensor, Any]:
        """The shadows' own cache and attention metadata, in place of a layer's ``cache`` and ``meta``. Raises the
        exception that the shadow's backend raised when it prepared the step."""
        prepared = self.metas[site, id(meta)]
        if isinstance(prepared, Exception):
            raise prepared
        return self.caches[site, id(cache)], prepared

    def preparing_both(self, prepare: Callable[..., Any], prepare_shadow: Callable[..., Any]) -> Callable[..., Any]:
        """A ``prepare`` that prepares the chosen kernel's weights by ``prepare`` and the shadow's by
        ``prepare_shadow``."""

        def both(parameters: dict[str, Tensor]) -> Any:
            weight = prepare(dict(parameters))
            self.weights[id(weight)] = weight, prepare_shadow(dict(parameters))  # kept alive: the id stays unique
            return weight

        return both

    def sampled_attention(self, run: Callable[..., Tensor], rate: float, width: int | None) -> Callable[..., Tensor]:
        """A backend's ``run``, for use in a shadow that runs in every step to fill its cache. In steps that are not
        compared, attention is skipped. ``width`` is that of a head's result; ``None``: a query's."""

        def attend(query: Tensor, *args: Any, **options: Any) -> Tensor:
            if self.draw < rate:
                return run(query, *args, **options)
            return query if width is None else query.new_empty(*query.shape[:-1], width)

        return attend

    @contextmanager
    def compare_every_step(self) -> Iterator[None]:
        """Within, every step compares all kernels that have a shadow; only failures are reported."""
        self.always = True
        try:
            yield
        finally:
            self.always = False

    def take(self) -> list[ShadowComparison]:
        """The comparisons since the step started, and the failures since the last call."""
        if self.always:
            return []
        taken, self._compared = self._compared, []
        return taken

    def record(self, compared: ShadowComparison) -> None:
        """Records the comparison of a call."""
        self._compared.append(compared)

    def add_rate(self, rate: float) -> None:
        """Records that a kernel is compared at ``rate``."""
        self._rate = max(self._rate, rate)


class Shadowed:
    """A kernel and its shadow; it is called like the kernel.

    Args:
        sites: the choice, and its shadow's choice, at the op's attention and linear sites.
        cache: for an op that reads or writes a cache: the attention site, and the position of the cache among the
            arguments; the attention metadata is the next argument. The shadow has its own cache.
        every_step: whether the shadow runs in every step, compared or not, as it must if it fills that cache.
        weights: positions of arguments that are weights, which are not copied.
        mutated: positions of arguments that the kernel changes in place, which are compared too.
    """

    def __init__(
        self,
        shared: Shadows,
        chosen: Choice,
        shadow: Shadow,
        run: Callable[..., Any],
        shadow_kernel: Callable[..., Any],
        *,
        sites: Sequence[tuple[Choice, Choice]] = (),
        cache: tuple[str, int] | None = None,
        every_step: bool = False,
        weights: Collection[int] = (),
        mutated: Collection[int] = (),
    ) -> None:
        self._shared = shared
        self._choices = ((chosen, shadow.choice), *sites)
        self._rate = shadow.rate
        self._run = run
        self._shadow_kernel = shadow_kernel
        self._cache = cache
        self._every_step = every_step
        self._failed = False
        self._weights = weights
        self._mutated = mutated
        self._pair = self._differing(1)
        shared.add_rate(shadow.rate)

    def select(self, num_tokens: int) -> tuple[int, int]:
        """Makes the kernels for ``num_tokens`` current; returns the range of token counts for which they stay
        current."""
        self._pair = self._differing(num_tokens)
        for kernel in (self._run, self._shadow_kernel):
            if select := getattr(kernel, "select", None):
                select(num_tokens)
        roots = [root for pair in self._choices for root in pair]
        pieces = [choice.piece(num_tokens) for root in roots for choice in root.with_parts()]
        return max(piece.start for piece in pieces), min(piece.stop for piece in pieces)

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Calls the chosen kernel, and, if this step is compared, the shadow with copies of the arguments."""
        if self._failed or not (self._every_step or self._sampled):
            return self._run(*args, **options)
        copies = self._guard(self._copies, args)
        result = self._run(*args, **options)
        if copies is not None:
            self._guard(self._compare, args, result, copies, options)
        return result

    def _differing(self, num_tokens: int) -> tuple[str, str] | None:
        """The first two kernel ids that differ at ``num_tokens``; ``None`` if no kernel differs, so there is nothing to
        compare."""
        return next(filter(None, (choice.difference(other, num_tokens) for choice, other in self._choices)), None)

    @property
    def _sampled(self) -> bool:
        return self._shared.draw < self._rate and self._pair is not None

    def _copies(self, args: tuple[Any, ...]) -> list[Any]:
        """Arguments for the shadow: its own weights and cache, and copies of the tensors that a kernel might change."""
        kept, own = set(self._weights), {}
        if self._cache is not None:
            at = self._cache[1] % len(args)
            own = dict(
                zip((at, at + 1), self._shared.shadow_cache(self._cache[0], args[at], args[at + 1]), strict=True)
            )
            kept.add(at - 1 if self._every_step else at)
        weights = self._shared.weights
        return [
            own[i]
            if i in own
            else weights[id(arg)][1]
            if id(arg) in weights
            else arg.clone()
            if isinstance(arg, Tensor) and i not in kept
            else arg
            for i, arg in enumerate(args)
        ]

    def _compare(self, args: tuple[Any, ...], result: Any, copies: list[Any], options: dict[str, Any]) -> None:
        """Runs the shadow, and compares the results on the device."""
        other = self._shadow_kernel(*copies, **options)
        ours = list(tensors_of([result, *(args[i] for i in self._mutated)]))
        if ours and self._sampled and self._pair is not None:
            error = relative_error([other, *(copies[i] for i in self._mutated)], ours)
            chosen = self._choices[0][0]
            results = tuple((list(one.shape), str(one.dtype).removeprefix("torch.")) for one in ours)
            self._shared.record(ShadowComparison(chosen.kind, chosen.site, self._pair, error, results))

    def _guard(self, do: Callable[..., T], *args: Any) -> T | None:
        """Returns ``do(*args)``; if it raises, disables this shadow and returns ``None``."""
        try:
            return do(*args)
        except Exception:
            self._failed = True
            chosen, shadow = self._choices[0]
            pair = self._pair or (chosen.id, shadow.id)
            self._shared.record(ShadowComparison(chosen.kind, chosen.site, pair, None))
            text = "the shadow %s of %s at %s site %s failed and was disabled; answers are not affected"
            logger.warning(text, pair[1], pair[0], chosen.kind, chosen.site, exc_info=True)
            return None


class ShadowedAttention:
    """An attention backend that also prepares steps for its shadows. If it has a ``shadow`` of its own, ``write`` and
    ``run`` call both; this is for layers that call the backend directly, not through an op."""

    def __init__(self, shared: Shadows, chosen: Choice, shadow: Shadow | None, backend: AttentionBackend) -> None:
        self._shared = shared
        self._site = chosen.site
        self._backend = backend
        self.cache_layout = backend.cache_layout
        self.write: Callable[..., None] = backend.write
        self.run: Callable[..., Tensor] = backend.run
        if shadow is not None:
            other, pair = shared.backends[chosen.site], (shared, chosen, shadow)
            self.write = Shadowed(*pair, backend.write, other.write, cache=(chosen.site, 2), every_step=True)
            self.run = Shadowed(*pair, backend.run, other.run, cache=(chosen.site, 1))

    def prepare(self, step: CacheStep) -> Any:
        """Prepares the step for the chosen backend, and for the shadow's."""
        meta = self._backend.prepare(step)
        if other := self._shared.backends.get(self._site):
            try:
                prepared: Any = other.prepare(step)
            except Exception as error:  # raised again by the call that needs the result
                prepared = error
            self._shared.metas[self._site, id(meta)] = prepared
        return meta

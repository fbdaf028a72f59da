"""Shadows: kernels that run beside the chosen ones on live traffic. They get copies, are compared, and change nothing.

What a shadow raises ends that shadow, never the step.
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
class Compared:
    """A call that was compared, or a shadow that failed (``error`` is ``None`` then)."""

    kind: str
    site: str
    pair: tuple[str, str]
    """Ids of the kernel that was chosen and of the one beside it."""
    error: Tensor | None
    """float32 ``[]``, see :func:`~llmk.reference.compare.relative_error`."""
    results: tuple[tuple[list[int], str], ...] = ()
    """Shapes and dtypes of what was compared."""


class Shadows:
    """What the shadows of one process share.

    Attributes:
        always: whether every step is a sample, and none is told of, as when steps are warmed up.
        draw: a number for each step; kernels with a rate above it are compared.
        caches: what attention shadows keep in place of a layer's cache, by attention site and ``id`` of the cache.
        backends: the attention backends of those caches, by attention site.
        metas: what those made of the step, by attention site and ``id`` of what the chosen one made.
        weights: what linear and MoE kernels prepared, and what their shadows did, by ``id`` of the former.
    """

    def __init__(self, seed: int = 0) -> None:
        self.always = False
        self.draw = 1.0
        self.caches: dict[tuple[str, int], Tensor] = {}
        self.backends: dict[str, AttentionBackend] = {}
        self.metas: dict[tuple[str, int], Any] = {}
        self.weights: dict[int, tuple[Any, Any]] = {}
        self._rate = 0.0
        self._compared: list[Compared] = []
        self._random = random.Random(seed)

    def begin(self) -> bool:
        """Begins a step; returns whether any kernel is compared in it. Processes of one seed sample the same steps."""
        self._compared = [each for each in self._compared if each.error is None]
        self.metas.clear()
        self.draw = 0.0 if self.always else self._random.random()
        return self.draw < self._rate

    def own(self, site: str, cache: Tensor, meta: Any) -> tuple[Tensor, Any]:
        """What shadows at an attention site take in the place of a layer's cache and the step's ``meta``. Raises what
        their backend raised when it prepared the step."""
        prepared = self.metas[site, id(meta)]
        if isinstance(prepared, Exception):
            raise prepared
        return self.caches[site, id(cache)], prepared

    def preparing(self, prepare: Callable[..., Any], beside: Callable[..., Any]) -> Callable[..., Any]:
        """What makes weights by ``prepare``, and those of the shadow by ``beside``."""

        def both(parameters: dict[str, Tensor]) -> Any:
            weight = prepare(dict(parameters))
            self.weights[id(weight)] = weight, beside(dict(parameters))  # alive, or the id would go to another
            return weight

        return both

    def attending(self, run: Callable[..., Tensor], rate: float, latent_dim: int | None) -> Callable[..., Tensor]:
        """A backend's ``run`` as a part of shadows, which in steps that are not compared are for what they store: it
        attends to nothing then."""

        def attend(query: Tensor, *args: Any, **options: Any) -> Tensor:
            return run(query, *args, **options) if self.draw < rate else query[..., :latent_dim]

        return attend

    @contextmanager
    def in_every_step(self) -> Iterator[None]:
        """Steps within compare all there is to compare, and tell nothing of it but what fails."""
        self.always = True
        try:
            yield
        finally:
            self.always = False

    def take(self) -> list[Compared]:
        """What was compared since the step began, and what has failed since this was asked for last."""
        if self.always:
            return []
        taken, self._compared = self._compared, []
        return taken

    def tell(self, compared: Compared) -> None:
        """Notes what came of a call."""
        self._compared.append(compared)

    def has(self, rate: float) -> None:
        """Notes that a kernel is compared at ``rate``."""
        self._rate = max(self._rate, rate)


class Shadowed:
    """A kernel and its shadow, called as the kernel is.

    Args:
        sites: what was chosen, and what runs beside it, at the op's attention and linear sites.
        cache: of what reads or writes a cache, the attention site, and the cache's position among the arguments; what
            the backend made of the step follows it. The shadow has a cache of its own.
        every_step: whether the shadow runs in every step, compared or not, as it must where it fills that cache.
        weights: positions of arguments that are weights, which are not copied.
        mutated: positions of arguments that the kernel changes in place, which are compared too.
    """

    def __init__(
        self,
        shared: Shadows,
        chosen: Choice,
        shadow: Shadow,
        run: Callable[..., Any],
        beside: Callable[..., Any],
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
        self._beside = beside
        self._cache = cache
        self._every_step = every_step
        self._failed = False
        self._weights = weights
        self._mutated = mutated
        self._pair = self._differing(1)
        shared.has(shadow.rate)

    def select(self, num_tokens: int) -> tuple[int, int]:
        """Makes the kernels for ``num_tokens`` current; returns the range of counts for which they stay so."""
        self._pair = self._differing(num_tokens)
        for kernel in (self._run, self._beside):
            if select := getattr(kernel, "select", None):
                select(num_tokens)
        roots = [root for pair in self._choices for root in pair]
        pieces = [choice.piece(num_tokens) for root in roots for choice in root.with_parts()]
        return max(piece.start for piece in pieces), min(piece.stop for piece in pieces)

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Calls the chosen kernel, and where it is due the other, with copies of the arguments."""
        if self._failed or not (self._every_step or self._sampled):
            return self._run(*args, **options)
        copies = self._guard(self._copies, args)
        result = self._run(*args, **options)
        if copies is not None:
            self._guard(self._compare, args, result, copies, options)
        return result

    def _differing(self, num_tokens: int) -> tuple[str, str] | None:
        """The first two kernels that differ at so many tokens; where none do, there is nothing to compare."""
        return next(filter(None, (choice.difference(other, num_tokens) for choice, other in self._choices)), None)

    @property
    def _sampled(self) -> bool:
        return self._shared.draw < self._rate and self._pair is not None

    def _copies(self, args: tuple[Any, ...]) -> list[Any]:
        """Arguments for the shadow: its own weights and cache, and copies of what a kernel might change."""
        kept, own = set(self._weights), {}
        if self._cache is not None:
            at = self._cache[1] % len(args)
            own = dict(zip((at, at + 1), self._shared.own(self._cache[0], args[at], args[at + 1]), strict=True))
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
        """Runs the shadow, and compares on the device."""
        other = self._beside(*copies, **options)
        ours = list(tensors_of([result, *(args[i] for i in self._mutated)]))
        if ours and self._sampled and self._pair is not None:
            error = relative_error([other, *(copies[i] for i in self._mutated)], ours)
            chosen = self._choices[0][0]
            results = tuple((list(one.shape), str(one.dtype).removeprefix("torch.")) for one in ours)
            self._shared.tell(Compared(chosen.kind, chosen.site, self._pair, error, results))

    def _guard(self, do: Callable[..., T], *args: Any) -> T | None:
        """What ``do`` returns; where it raises, the end of this shadow."""
        try:
            return do(*args)
        except Exception:
            self._failed = True
            chosen, shadow = self._choices[0]
            pair = self._pair or (chosen.id, shadow.id)
            self._shared.tell(Compared(chosen.kind, chosen.site, pair, None))
            text = "the shadow %s of %s at %s site %s failed and is run no more; answers are not touched by that"
            logger.warning(text, pair[1], pair[0], chosen.kind, chosen.site, exc_info=True)
            return None


class ShadowedAttention:
    """An attention backend whose steps are prepared for shadows too. Where it has a ``shadow`` itself, layers that call
    it, not by an op, call both."""

    def __init__(self, shared: Shadows, chosen: Choice, shadow: Shadow | None, backend: AttentionBackend) -> None:
        self._shared = shared
        self._site = chosen.site
        self._backend = backend
        self.cache_layout = backend.cache_layout
        self.write: Callable[..., None] = backend.write
        self.run: Callable[..., Tensor] = backend.run
        if shadow is not None:
            beside, pair = shared.backends[chosen.site], (shared, chosen, shadow)
            self.write = Shadowed(*pair, backend.write, beside.write, cache=(chosen.site, 2), every_step=True)
            self.run = Shadowed(*pair, backend.run, beside.run, cache=(chosen.site, 1))

    def prepare(self, step: CacheStep) -> Any:
        """What the backend makes of a step."""
        meta = self._backend.prepare(step)
        if beside := self._shared.backends.get(self._site):
            try:
                prepared: Any = beside.prepare(step)
            except Exception as error:  # raised again where it is missed
                prepared = error
            self._shared.metas[self._site, id(meta)] = prepared
        return meta

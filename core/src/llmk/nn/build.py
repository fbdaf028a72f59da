"""Binding: turns the plan's choices into callables, once, when the model is built."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from llmk.api import AttentionBackend, CacheLayout, CacheStep, Checkpoint, Choice, Piece, Plan, PluginError, Shadow
from llmk.nn.layers import Layers
from llmk.nn.parallel import Parallel
from llmk.nn.quantization import Quantization
from llmk.nn.shadow import Shadowed, ShadowedAttention, Shadows

if TYPE_CHECKING:
    from llmk.nn.layer import Layer

S = TypeVar("S", bound="Switch | Shadowed")
T = TypeVar("T")
_EVERY = (0, 1 << 31)
_WEIGHTS_AT = {"linear": 1, "moe": 2}
"""The position of the weights among a kernel's arguments, by kind."""


class Switch:
    """Several kernels for one site, of which one is current. Flipped between steps, so that a call decides nothing."""

    __slots__ = ("_pieces", "current")

    def __init__(self, pieces: Sequence[tuple[int, int, Any]]) -> None:
        self._pieces = tuple(pieces)
        self.current = pieces[0][2]

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Calls the current kernel."""
        return self.current(*args, **options)

    def select(self, num_tokens: int) -> tuple[int, int]:
        """Makes the kernel for ``num_tokens`` current; returns the range of counts for which it stays so."""
        for start, stop, piece in self._pieces:
            if start <= num_tokens < stop:
                self.current = piece
                return start, stop
        raise ValueError(f"no kernel for {num_tokens} tokens among {[piece[:2] for piece in self._pieces]}")


class AttentionSwitch(Switch):
    """The same for attention backends, which share one cache layout. It is flipped before the step is prepared."""

    __slots__ = ()

    current: AttentionBackend

    def cache_layout(self, num_blocks: int) -> CacheLayout:
        """The backends' common layout."""
        return self.current.cache_layout(num_blocks)

    def prepare(self, step: CacheStep) -> Any:
        """The current backend's."""
        return self.current.prepare(step)

    def write(self, key: Tensor, value: Tensor | None, cache: Tensor, meta: Any, **options: Any) -> None:
        """The current backend's."""
        self.current.write(key, value, cache, meta, **options)

    def run(self, query: Tensor, cache: Tensor, meta: Any, **options: Any) -> Tensor:
        """The current backend's."""
        return self.current.run(query, cache, meta, **options)


@dataclass(frozen=True, slots=True)
class WeightKernel:
    """What a linear or MoE site binds: the kernel, and ``prepare(parameters)``, which makes its weights."""

    run: Callable[..., Tensor]
    prepare: Callable[[dict[str, Tensor]], Any]
    weight_format: str


class Build:
    """Hands out the kernels of one plan on one device, and collects the layers that are built with them.

    Args:
        dtype: the engine's dtype, the only one: no layer reads the checkpoint's.
        parallel: the process's place among those that run the model together.
        max_model_len: tokens of the longest text that is served; 0: of the longest that the model can.
        checkpoint: what the plan's method of quantization is made for, if it has one.
        load_object: returns what ``"module:attribute"`` names, of ``plugin`` (name and version), ``id`` and ``kind``
            (:func:`llmk.kernel.loader.load_object`).

    Attributes:
        quantization: the method that layers at sites of its weight format ask.
        layers: every layer built so far that owns parameters.
        here: whether what is built now is for this process's stage.
        shadows: what shadows share, where the plan has some.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        dtype: torch.dtype,
        device: torch.device,
        load_object: Callable[..., Any],
        parallel: Parallel | None = None,
        checkpoint: Checkpoint | None = None,
        max_model_len: int = 0,
    ) -> None:
        self.plan = plan
        self.dtype = dtype
        self.max_model_len = max_model_len
        self.device = device
        self.parallel = parallel or Parallel()
        self.quantization = Quantization(checkpoint)
        if checkpoint is not None and plan.quantization_implementation:
            self.quantization = load_object(
                plan.quantization_implementation, kind="quantization", id=plan.quantization
            )(checkpoint)
        self.layers: list[Layer] = []
        self.here = True
        self.shadows = Shadows() if plan.shadows else None
        self._load_object = load_object
        self._kernels: dict[tuple[str, ...], Callable[..., Any]] = {}
        self._weighted: dict[tuple[str, str, bool], WeightKernel] = {}
        self._attention: dict[str, AttentionBackend] = {}
        self._backends: dict[tuple[str, bool], AttentionBackend] = {}
        self._runs: dict[tuple[str, str, bool, bool], Any] = {}
        self._switches: list[Switch | Shadowed] = []
        self._asked: list[Hashable] = []
        """What kernels were asked for, in turn."""
        self._stages: list[Layers[Any]] = []
        self._band = _EVERY

    def kernel(self, kind: str, site: str, *, attention: str = "", linear: str = "") -> Callable[..., Any]:
        """The callable for a site.

        Args:
            attention, linear: the sites whose backend and kernel a composite op has as parts ``"attention.write"``,
                ``"attention.run"`` and ``"linear"``.

        Raises:
            KeyError: where the plan has no such site.
        """
        key = (kind, site, attention, linear)
        self._asked.append(key)
        if key not in self._kernels:
            choice, shadow = self.plan.choice(kind, site), self.plan.shadow(kind, site)
            kernel = self._bind(choice, self._given(attention, linear))
            if shadow is not None and self.shadows is not None:
                beside = self._bind(shadow.choice, self._given(attention, linear, shadow))
                contract = shadow.contract
                kernel = Shadowed(
                    *(self.shadows, choice, shadow, kernel, beside),
                    sites=list(self._beside(("attention", attention), ("linear", linear))),
                    cache=(attention, -2) if attention else None,
                    every_step=bool(attention),
                    weights=contract.positions(contract.weights) if contract else (),
                    mutated=contract.positions(contract.mutates_args) if contract else (),
                )
                self._switched(kernel)
            self._kernels[key] = kernel
        return self._kernels[key]

    def linear(self, site: str, *, rows: bool = False) -> WeightKernel:
        """The kernel of a linear site. With ``rows`` its switch, where it is one, is the caller's alone to flip."""
        return self._with_weights("linear", site, rows, _plain_weight)

    def moe(self, site: str) -> WeightKernel:
        """The kernel of a mixture-of-experts site."""
        return self._with_weights("moe", site, False, dict)

    def _with_weights(self, kind: str, site: str, rows: bool, plain: Callable[..., Any]) -> WeightKernel:
        self._asked.append((kind, site, rows))
        if (kind, site, rows) not in self._weighted:
            choice, shadow = self.plan.choice(kind, site), self.plan.shadow(kind, site)
            run, prepare = self._run(kind, site, rows), self._preparing(choice, plain)
            if shadow is not None and self.shadows is not None:
                beside = self._run(kind, site, rows, beside=True)
                run = Shadowed(self.shadows, choice, shadow, run, beside, weights=(_WEIGHTS_AT[kind],))
                run = run if rows else self._switched(run)
                if choice.pieces[0].prepare != shadow.choice.pieces[0].prepare:
                    prepare = self.shadows.preparing(prepare, self._preparing(shadow.choice, plain))
            weight_format = getattr(choice.query, "weight_format", "plain")
            self._weighted[kind, site, rows] = WeightKernel(run, prepare, weight_format)
        return self._weighted[kind, site, rows]

    def _run(self, kind: str, site: str, rows: bool = False, *, beside: bool = False) -> Any:
        """What was chosen for a site with weights, or what runs ``beside`` it, where anything does."""
        shadow = self.plan.shadow(kind, site) if beside else None
        key = (kind, site, rows, shadow is not None)
        if key not in self._runs:
            self._runs[key] = self._bind(
                shadow.choice if shadow else self.plan.choice(kind, site), {}, register=not rows
            )
        return self._runs[key]

    def _preparing(self, choice: Choice, plain: Callable[..., Any]) -> Callable[..., Any]:
        first = choice.pieces[0]
        return self._load(first, first.prepare, "prepare") if first.prepare else plain

    def attention(self, site: str) -> AttentionBackend:
        """The backend of an attention site."""
        self._asked.append(("attention", site))
        if site not in self._attention:
            backend = self._backend(site)
            if self.shadows is not None:
                choice, shadow = self.plan.choice("attention", site), self.plan.shadow("attention", site)
                if shadow is not None:
                    self.shadows.backends[site] = self._backend(site, beside=True)
                backend = ShadowedAttention(self.shadows, choice, shadow, backend)
            self._attention[site] = backend
        return self._attention[site]

    def _backend(self, site: str, *, beside: bool = False) -> AttentionBackend:
        shadow = self.plan.shadow("attention", site) if beside else None
        key = (site, shadow is not None)
        if key not in self._backends:
            choice = shadow.choice if shadow else self.plan.choice("attention", site)
            made = [self._load(p, p.implementation, "attention")(choice.query, self.device) for p in choice.pieces]
            pieces = [(p.start, p.stop, backend) for p, backend in zip(choice.pieces, made, strict=True)]
            self._backends[key] = self._one_of(pieces, AttentionSwitch)
        return self._backends[key]

    def _beside(self, *sites: tuple[str, str]) -> Iterator[tuple[Choice, Choice]]:
        """What was chosen and what is beside it, of sites by kind and name, where anything is."""
        for kind, site in sites:
            if (shadow := self.plan.shadow(kind, site)) is not None:
                yield self.plan.choice(kind, site), shadow.choice

    def _given(self, attention: str, linear: str, shadow: Shadow | None = None) -> dict[str, Any]:
        """The parts that stand for what was chosen at an op's own sites; of its ``shadow``, for what is beside that."""
        given: dict[str, Any] = {}
        if attention:
            backend = self._backend(attention, beside=shadow is not None)
            given |= {"attention.write": backend.write, "attention.run": backend.run}
            if shadow is not None and self.shadows is not None:
                self.shadows.backends[attention] = backend
                latent_dim = getattr(self.plan.choice("attention", attention).query, "latent_dim", None)
                given["attention.run"] = self.shadows.attending(backend.run, shadow.rate, latent_dim)
        if linear:
            given["linear"] = self._run("linear", linear, beside=shadow is not None)
        return given

    @contextmanager
    def stage(self, here: bool) -> Iterator[None]:
        """What is built within belongs to this process's stage, or else to another one: then it never runs, and stands
        for the names of its parameters alone, which the loader must know to tell what is missing or unknown."""
        self.here = here
        yield
        self.here = True

    def stage_of(self, count: int, make: Callable[[int], T]) -> Layers[T]:
        """Makes ``count`` layers by their numbers; returns those of this process's stage.

        A model iterates over them at each step, and finds but few of those that ask for the same kernels while these
        are compiled ahead (:meth:`few_layers`).
        """
        mine, layers, kinds = self.parallel.layers(count), [], []
        for index in range(count):
            asked, owned = len(self._asked), len(self.layers)
            with self.stage(index in mine):
                layers.append(make(index))
            shapes = [p.shape(tuple(range(len(p.names)))) for layer in self.layers[owned:] for p in layer.parameters]
            kinds.append((tuple(self._asked[asked:]), tuple(shapes)))
        stage = slice(mine.start, mine.stop)
        self._stages.append(Layers(layers[stage], kinds[stage]))
        return self._stages[-1]

    @contextmanager
    def few_layers(self) -> Iterator[None]:
        """Within, a model runs but a few layers for all those that ask for the same kernels, for tensors of the same
        shapes: enough to know what is launched."""
        with ExitStack() as stack:
            for layers in self._stages:
                stack.enter_context(layers.few())
            yield

    def select(self, num_tokens: int) -> None:
        """Before a step is prepared: makes the kernels for ``num_tokens`` current. Free while the band stays."""
        low, high = self._band
        if low <= num_tokens < high:
            return
        low, high = _EVERY
        for switch in self._switches:
            start, stop = switch.select(num_tokens)
            low, high = max(low, start), min(high, stop)
        self._band = low, high

    def _bind(self, choice: Choice, given: Mapping[str, Any], *, register: bool = True) -> Any:
        pieces = [(p.start, p.stop, self._bind_piece(choice, p, given)) for p in choice.pieces]
        return self._one_of(pieces, Switch, register=register)

    def _bind_piece(self, choice: Choice, piece: Piece, given: Mapping[str, Any]) -> Any:
        implementation = self._load(piece, piece.implementation, "composite" if piece.parts else choice.kind)
        if not piece.parts:
            return implementation
        parts = {part.op: part for part in choice.parts}
        bound = {}
        for name in piece.parts:
            if name in given:
                bound[name] = given[name]
            elif name in parts:
                bound[name] = self._bind(parts[name], given)
            else:
                raise PluginError(
                    f"{piece.id} at site {choice.site!r} takes part {name!r}, which neither the plan nor the layer has",
                    hint=f"the site has {', '.join([*given, *parts]) or 'no parts'}",
                )
        return implementation(bound)

    def _one_of(self, pieces: list[tuple[int, int, Any]], switch_type: type[Switch], *, register: bool = True) -> Any:
        if len(pieces) == 1:
            return pieces[0][2]
        switch = switch_type(pieces)
        return self._switched(switch) if register else switch

    def _switched(self, switch: S) -> S:
        """``switch``, which is flipped between steps from now on."""
        self._switches.append(switch)
        self._band = (0, 0)
        return switch

    def _load(self, piece: Piece, path: str, kind: str) -> Any:
        return self._load_object(path, plugin=f"{piece.distribution} {piece.version}", kind=kind, id=piece.id)


def _plain_weight(parameters: dict[str, Tensor]) -> Tensor:
    return parameters["weight"]

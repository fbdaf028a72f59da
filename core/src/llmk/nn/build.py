"""Binding: turns the plan's choices into callables, once, when the model is built."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from llmk.api import (
    AttentionBackend,
    CacheLayout,
    CacheStep,
    Checkpoint,
    Choice,
    Graphs,
    Piece,
    Plan,
    PluginError,
    Shadow,
)
from llmk.nn.layers import Layers
from llmk.nn.parallel import Parallel
from llmk.nn.position_table import PositionTable
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
    """Several kernels for one site, one of which is current. It is switched between steps, so that a call does no
    lookup."""

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
    """A switch between attention backends that share one cache layout. It is switched before the step is prepared."""

    __slots__ = ()

    current: AttentionBackend

    def cache_layout(self, num_blocks: int) -> CacheLayout:
        """The layout that all the backends share."""
        return self.current.cache_layout(num_blocks)

    def prepare(self, step: CacheStep) -> Any:
        """Calls ``prepare`` of the current backend."""
        return self.current.prepare(step)

    def write(self, key: Tensor, value: Tensor | None, cache: Tensor, meta: Any, **options: Any) -> None:
        """Calls ``write`` of the current backend."""
        self.current.write(key, value, cache, meta, **options)

    def run(self, query: Tensor, cache: Tensor, meta: Any, **options: Any) -> Tensor:
        """Calls ``run`` of the current backend."""
        return self.current.run(query, cache, meta, **options)


@dataclass(frozen=True, slots=True)
class WeightKernel:
    """What a linear or MoE layer binds: the kernel ``run``, and ``prepare(parameters)``, which returns the weights for
    it. ``site`` is the plan's, which differs from the model's if the plan has several variants of it."""

    run: Callable[..., Tensor]
    prepare: Callable[[dict[str, Tensor]], Any]
    weight_format: str
    site: str


class Build:
    """Binds the kernels of one plan on one device, and collects the layers that are built with them.

    Args:
        dtype: the engine's dtype. Layers use this one, not the checkpoint's.
        parallel: this process's ranks, and its collectives.
        max_model_len: maximum sequence length in tokens; 0: the model's own maximum.
        position_rows: rows of a :class:`~llmk.nn.position_table.PositionTable` that are made at a time, as
            :meth:`reach` requires; 0: all, when the table is made.
        checkpoint: passed to the plan's quantization methods, if the plan has any.
        graphs: the platform's, whose steps these layers are part of; ``None``: they are not recorded.
        load_object: imports ``"module:attribute"``, of ``plugin`` (name and version), ``id`` and ``kind``
            (:func:`llmk.kernel.loader.load_object`).

    Attributes:
        methods: the quantization methods, by weight format.
        cache_scales: names of the K scales and of the V scales of all quantization methods (:class:`Quantization`).
        layers: every layer built so far that owns parameters.
        position_tables: those of which rows are still to be made.
        here: whether the layers that are built now belong to this process's pipeline stage.
        adapter_index: int64 ``[tokens]``, the adapter of each token of the step that runs, -1 for none; ``None`` where
            no token has one. Set before each step, as kernels are switched.
        concurrent: calls two functions (:meth:`llmk.api.Graphs.concurrent`).
        shadows: state that the plan's shadow kernels share; ``None`` if the plan has no shadow.
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
        position_rows: int = 0,
        graphs: Graphs | None = None,
    ) -> None:
        self.plan = plan
        self.concurrent = graphs.concurrent if graphs is not None else lambda first, second: (first(), second())
        self.dtype = dtype
        self.max_model_len = max_model_len
        self.position_tables: list[PositionTable] = []
        self._position_rows = position_rows
        self.device = device
        self.parallel = parallel or Parallel()
        self.methods: dict[str, Quantization] = {
            method.weight_format: load_object(method.implementation, kind="quantization", id=method.id)(checkpoint)
            for method in plan.quantization
            if checkpoint is not None
        }
        self.cache_scales = tuple(
            tuple(dict.fromkeys(name for method in self.methods.values() for name in method.cache_scales[i]))
            for i in range(2)
        )
        self.adapter_index: Tensor | None = None
        self._variants = {(v.kind, v.site, member): v.variant for v in plan.variants for member in v.members}
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
        self._lookups: list[Hashable] = []
        """One entry for each kernel lookup, in order. Layers with equal entries launch the same kernels."""
        self._stages: list[Layers[Any]] = []
        self._current_range = _EVERY

    def kernel(self, kind: str, site: str, *, attention: str = "", linear: str = "") -> Callable[..., Any]:
        """The callable for a site.

        Args:
            attention, linear: the attention site that provides a composite op's parts ``"attention.write"`` and
                ``"attention.run"``, and the linear site that provides its part ``"linear"``.

        Raises:
            KeyError: the plan has no such site.
        """
        site = self._variants.get((kind, site, linear), site)
        key = (kind, site, attention, linear)
        self._lookups.append(key)
        if key not in self._kernels:
            choice, shadow = self.plan.choice(kind, site), self.plan.shadow(kind, site)
            kernel = self._bind(choice, self._site_parts(attention, linear))
            if shadow is not None and self.shadows is not None:
                shadow_kernel = self._bind(shadow.choice, self._site_parts(attention, linear, shadow))
                contract = shadow.contract
                kernel = Shadowed(
                    *(self.shadows, choice, shadow, kernel, shadow_kernel),
                    sites=list(self._shadowed_sites(("attention", attention), ("linear", linear))),
                    cache=(attention, -2) if attention else None,
                    every_step=bool(attention),
                    weights=contract.positions(contract.weights) if contract else (),
                    mutated=contract.positions(contract.mutates_args) if contract else (),
                )
                self._register(kernel)
            self._kernels[key] = kernel
        return self._kernels[key]

    def quantization(self, weight_format: str) -> Quantization:
        """The quantization method that loads weights of a format."""
        return self.methods.get(weight_format) or Quantization()

    def linear(self, site: str, *, module: str = "", own_switch: bool = False) -> WeightKernel:
        """The kernel of a linear site. ``module`` is the layer's first module, as in
        :attr:`~llmk.api.LinearFacts.modules`. With ``own_switch``, a piecewise choice returns a switch that only the
        caller switches, by its own row count; otherwise the step's token count switches it."""
        return self._with_weights("linear", site, module, own_switch, _plain_weight)

    def moe(self, site: str, *, module: str = "") -> WeightKernel:
        """The kernel of a mixture-of-experts site; ``module`` as for :meth:`linear`."""
        return self._with_weights("moe", site, module, False, dict)

    def _with_weights(
        self, kind: str, site: str, module: str, own_switch: bool, plain: Callable[..., Any]
    ) -> WeightKernel:
        site = self._variants.get((kind, site, module), site)
        self._lookups.append((kind, site, own_switch))
        if (kind, site, own_switch) not in self._weighted:
            choice, shadow = self.plan.choice(kind, site), self.plan.shadow(kind, site)
            run, prepare = self._run(kind, site, own_switch), self._preparing(choice, plain)
            if shadow is not None and self.shadows is not None:
                shadow_kernel = self._run(kind, site, own_switch, of_shadow=True)
                run = Shadowed(self.shadows, choice, shadow, run, shadow_kernel, weights=(_WEIGHTS_AT[kind],))
                run = run if own_switch else self._register(run)
                if choice.pieces[0].prepare != shadow.choice.pieces[0].prepare:
                    prepare = self.shadows.preparing_both(prepare, self._preparing(shadow.choice, plain))
            weight_format = getattr(choice.query, "weight_format", "plain")
            self._weighted[kind, site, own_switch] = WeightKernel(run, prepare, weight_format, site)
        return self._weighted[kind, site, own_switch]

    def _run(self, kind: str, site: str, own_switch: bool = False, *, of_shadow: bool = False) -> Any:
        """The kernel that was chosen for a site with weights; with ``of_shadow``, the kernel of its shadow, if it has
        one."""
        shadow = self.plan.shadow(kind, site) if of_shadow else None
        key = (kind, site, own_switch, shadow is not None)
        if key not in self._runs:
            self._runs[key] = self._bind(
                shadow.choice if shadow else self.plan.choice(kind, site), {}, register=not own_switch
            )
        return self._runs[key]

    def _preparing(self, choice: Choice, plain: Callable[..., Any]) -> Callable[..., Any]:
        first = choice.pieces[0]
        return self._load(first, first.prepare, "prepare") if first.prepare else plain

    def attention(self, site: str) -> AttentionBackend:
        """The backend of an attention site."""
        self._lookups.append(("attention", site))
        if site not in self._attention:
            backend = self._backend(site)
            if self.shadows is not None:
                choice, shadow = self.plan.choice("attention", site), self.plan.shadow("attention", site)
                if shadow is not None:
                    self.shadows.backends[site] = self._backend(site, of_shadow=True)
                backend = ShadowedAttention(self.shadows, choice, shadow, backend)
            self._attention[site] = backend
        return self._attention[site]

    def _backend(self, site: str, *, of_shadow: bool = False) -> AttentionBackend:
        shadow = self.plan.shadow("attention", site) if of_shadow else None
        key = (site, shadow is not None)
        if key not in self._backends:
            choice = shadow.choice if shadow else self.plan.choice("attention", site)
            made = [self._load(p, p.implementation, "attention")(choice.query, self.device) for p in choice.pieces]
            pieces = [(p.start, p.stop, backend) for p, backend in zip(choice.pieces, made, strict=True)]
            self._backends[key] = self._as_switch(pieces, AttentionSwitch)
        return self._backends[key]

    def _shadowed_sites(self, *sites: tuple[str, str]) -> Iterator[tuple[Choice, Choice]]:
        """For each of the sites (kind, name) that has a shadow: the choice and the shadow's choice."""
        for kind, site in sites:
            if (shadow := self.plan.shadow(kind, site)) is not None:
                yield self.plan.choice(kind, site), shadow.choice

    def _site_parts(self, attention: str, linear: str, shadow: Shadow | None = None) -> dict[str, Any]:
        """The parts of a composite op that come from its attention and linear sites; for ``shadow``, those of these
        sites' shadows."""
        site_parts: dict[str, Any] = {}
        if attention:
            backend = self._backend(attention, of_shadow=shadow is not None)
            site_parts |= {"attention.write": backend.write, "attention.run": backend.run}
            if shadow is not None and self.shadows is not None:
                self.shadows.backends[attention] = backend
                query = self.plan.choice("attention", attention).query
                width = getattr(query, "latent_dim", None) or getattr(query, "value_dim", None)
                site_parts["attention.run"] = self.shadows.sampled_attention(backend.run, shadow.rate, width)
        if linear:
            site_parts["linear"] = self._run("linear", linear, of_shadow=shadow is not None)
        return site_parts

    @contextmanager
    def stage(self, here: bool) -> Iterator[None]:
        """Layers built within belong to this process's pipeline stage if ``here``. Layers of other stages never run;
        they only provide their parameters' names, so that the loader can report missing and unknown tensors."""
        self.here = here
        yield
        self.here = True

    def stage_layers(self, count: int, make: Callable[[int], T]) -> Layers[T]:
        """Builds ``count`` layers by index; returns those of this process's stage.

        A model iterates over them in each step. During ahead-of-time compilation, the iteration visits only a few of
        the layers that launch the same kernels (:meth:`representative_layers`).
        """
        mine, layers, kinds = self.parallel.layers(count), [], []
        for index in range(count):
            first_lookup, first_layer = len(self._lookups), len(self.layers)
            with self.stage(index in mine):
                layers.append(make(index))
            shapes = [
                p.shape(tuple(range(len(p.names)))) for layer in self.layers[first_layer:] for p in layer.parameters
            ]
            kinds.append((tuple(self._lookups[first_lookup:]), tuple(shapes)))
        stage = slice(mine.start, mine.stop)
        self._stages.append(Layers(layers[stage], kinds[stage]))
        return self._stages[-1]

    @contextmanager
    def representative_layers(self) -> Iterator[None]:
        """Within, iterating over a stage's layers visits two of each group that launches the same kernels with the same
        shapes: enough to find out which kernels must be compiled."""
        with ExitStack() as stack:
            for layers in self._stages:
                stack.enter_context(layers.few())
            yield

    def select(self, num_tokens: int) -> None:
        """Makes the kernels for ``num_tokens`` current. Called before a step is prepared; returns at once while the
        count stays in the current range."""
        low, high = self._current_range
        if low <= num_tokens < high:
            return
        low, high = _EVERY
        for switch in self._switches:
            start, stop = switch.select(num_tokens)
            low, high = max(low, start), min(high, stop)
        self._current_range = low, high

    def position_table(self, make: Callable[[range], Tensor], longest: int) -> Tensor:
        """A table with a row for each of ``longest`` positions, of which ``make`` returns those of a range. Rows are
        made before a step reads them: what is derived of the table when the model is built would lack the others."""
        table = PositionTable(make, longest, self.device, self._position_rows)
        if not table.is_full:
            self.position_tables.append(table)
        return table.tensor

    def reach(self, length: int) -> None:
        """Makes the rows of position tables that requests of up to ``length`` tokens read. Called before a step."""
        for table in self.position_tables:
            table.reach(length)
        if any(table.is_full for table in self.position_tables):
            self.position_tables = [table for table in self.position_tables if not table.is_full]

    def _bind(self, choice: Choice, site_parts: Mapping[str, Any], *, register: bool = True) -> Any:
        pieces = [(p.start, p.stop, self._bind_piece(choice, p, site_parts)) for p in choice.pieces]
        return self._as_switch(pieces, Switch, register=register)

    def _bind_piece(self, choice: Choice, piece: Piece, site_parts: Mapping[str, Any]) -> Any:
        implementation = self._load(piece, piece.implementation, "composite" if piece.parts else choice.kind)
        if not piece.parts:
            return implementation
        parts = {part.op: part for part in choice.parts}
        bound = {}
        for name in piece.parts:
            if name in site_parts:
                bound[name] = site_parts[name]
            elif name in parts:
                bound[name] = self._bind(parts[name], site_parts)
            else:
                raise PluginError(
                    f"{piece.id} at site {choice.site!r} needs part {name!r}, which neither plan nor layer provides",
                    hint=f"the site has {', '.join([*site_parts, *parts]) or 'no parts'}",
                )
        return implementation(bound)

    def _as_switch(
        self, pieces: list[tuple[int, int, Any]], switch_type: type[Switch], *, register: bool = True
    ) -> Any:
        if len(pieces) == 1:
            return pieces[0][2]
        switch = switch_type(pieces)
        return self._register(switch) if register else switch

    def _register(self, switch: S) -> S:
        """Registers ``switch``, which :meth:`select` switches from now on."""
        self._switches.append(switch)
        self._current_range = (0, 0)
        return switch

    def _load(self, piece: Piece, path: str, kind: str) -> Any:
        return self._load_object(path, plugin=f"{piece.distribution} {piece.version}", kind=kind, id=piece.id)


def _plain_weight(parameters: dict[str, Tensor]) -> Tensor:
    return parameters["weight"]

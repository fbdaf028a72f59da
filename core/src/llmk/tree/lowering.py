"""Lowering: from what a model is to how it runs. What stands next to each other decides which op spans it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

from llmk.api import OpFacts, PluginError
from llmk.tree.block import Block, Entry, Residual
from llmk.tree.causal_lm import CausalLM
from llmk.tree.linear import Linear
from llmk.tree.norm import Norm
from llmk.tree.spec import Spec, Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Joint(Spec):
    """What is between two blocks of the residual stream: the norm after the block before, the sum, the norm before the
    next block, and the start of that block if an op spans it."""

    post: Norm | None = None
    scale: float = 1.0
    """Factor of the output of the block before."""
    norm: Norm | None
    entry: Entry | None = None
    """The start of the next block, if the op spans it."""
    first: bool = False
    """Whether it is the first of the stream, so that there is no sum."""
    residual_dtype: str = ""
    sums: bool = False
    """Whether the output of the block before is an addend, to be summed over tensor-parallel ranks."""

    def parts(self) -> Iterator[Spec]:
        """The norms; the linear layer of ``entry`` is a part of its block."""
        return (norm for norm in (self.post, self.norm) if norm is not None)

    @property
    def sum_op(self) -> str:
        """The op, and its site, that adds the residual and norms the sum; empty if there is none."""
        if self.norm is None or self.first:
            return ""
        if self.norm.centered:
            return "add_layer_norm"
        if self.post:
            return "sandwich_norm"
        return "add_rms_norm_fp32_residual" if self.residual_dtype else "add_rms_norm"

    @property
    def options(self) -> dict[str, float]:
        """Facts of the op that adds the residual, which its kernel gets by name."""
        return {} if self.scale == 1.0 else {"residual_multiplier": self.scale}

    def ops(self, name: Callable[[Spec], str]) -> tuple[OpFacts, ...]:
        if self.norm is None:
            return () if self.post is None else (_op("rms_norm_add", self.post.facts),)
        size: dict[str, Any] = self.norm.facts
        if self.entry is None:
            sums = (_op(self.sum_op, size | self.options),) if self.sum_op else ()
            return (_op(self.norm.op, size), *sums)
        op, linear, suffix, inner, options = self.entry
        facts, divided = (size | {"intermediate_size": inner}, ("intermediate_size",)) if inner else (size, ())
        facts |= self.options | dict(options)
        site = f"norm_{linear.role}{suffix}"
        return (OpFacts(site=site, op=op, facts=facts, linear=name(linear), divided=divided),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sublayer(Spec):
    """A joint and the block after it."""

    joint: Joint
    block: Block


@dataclass(frozen=True, kw_only=True)
class Program:
    """A lowered model. ``layers`` consist of sublayers, or of specs of their own (:class:`~llmk.tree.Stream`)."""

    model: CausalLM
    layers: tuple[tuple[Sublayer | Spec, ...], ...]
    end: Joint
    ahead: tuple[Program, ...] = ()
    """The layers of :attr:`CausalLM.ahead <llmk.tree.CausalLM.ahead>`, each with its end."""

    def leaves(self) -> Iterator[Spec]:
        """Everything that it is made of, in the order in which it computes."""
        yield self.model.embed
        if self.model.embed_norm is not None:
            yield self.model.embed_norm
        if self.model.stream is not None:
            yield from self.model.stream.leaves()
        for layer in self.layers:
            for part in layer:
                yield from part.leaves()
        yield from self.end.leaves()
        yield self.model.head
        for head, program in zip(self.model.ahead, self.ahead, strict=True):
            yield from (head.embed_norm, head.hidden_norm, head.project)
            yield from (leaf for part in (*program.layers[0], program.end) for leaf in part.leaves())

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors of the checkpoint, by name; those with copies once.

        Raises:
            PluginError: two specs name the same tensor.
        """
        owners: dict[str, tuple[Spec, Tensor]] = {}
        for leaf in self.leaves():
            for tensor in leaf.tensors():
                owner, _ = owners.setdefault(tensor.name, (leaf, tensor))
                if owner is not leaf:
                    places = f"as {_shown(owner)} and {_shown(leaf)}"
                    raise PluginError(
                        f"the model's tree names the tensor {tensor.name!r} twice: {places}",
                        hint="correct `at` of one of them; parts that share a tensor use the same spec",
                    )
        return {name: tensor for name, (_, tensor) in owners.items()}

    @property
    def num_parameters(self) -> int:
        """Elements of all parameters; a tied table counts once."""
        return sum(tensor.num_elements for tensor in self.tensors.values())


def lower(model: CausalLM, *, fuse: bool = True, ranks: int = 1) -> Program:
    """The program of a model.

    Args:
        fuse: whether ops may span a norm and the linear layer after it, so that the normed input of the layer is not
            available to others.
        ranks: tensor-parallel ranks. With several, joints sum over them, so that a platform can sum, add and norm at
            once; the linear layer after the norm is then apart.
    """
    dtype, ends, layers, first, sums = model.residual_dtype, _NO_END, [], True, False
    partial = cache(_partial)
    plain = all(isinstance(part, Residual) for layer in model.layers for part in layer)
    for layer in model.layers:
        parts: list[Sublayer | Spec] = []
        for part in layer:
            if not isinstance(part, Residual):
                parts.append(part)
                continue
            norm, entry = part.norm, part.block.entry
            if not fuse or ranks > 1 or ends[0] is not None or dtype or norm is None or norm.offset or norm.centered:
                entry = None  # the ops know one RMS norm, whose weight is stored as it is
            _check_ends(*ends, norm, dtype)
            more: dict[str, Any] = {"entry": entry, "first": first, "residual_dtype": dtype, "sums": sums}
            addend = part.block.addend(partial) if ranks > 1 and plain else None
            joint = Joint(post=ends[0], scale=ends[1], norm=norm, **more)
            parts.append(Sublayer(joint=joint, block=addend or part.block))
            ends, first, sums = (part.post, part.scale), False, addend is not None
        layers.append(tuple(parts))
    _check_ends(*ends, model.norm, dtype)
    end = Joint(post=ends[0], scale=ends[1], norm=model.norm, residual_dtype=dtype, sums=sums)
    heads = (replace(model, layers=(head.layer,), norm=head.norm, ahead=()) for head in model.ahead)
    ahead = tuple(lower(head, fuse=fuse, ranks=ranks) for head in heads)
    return Program(model=model, layers=tuple(layers), end=end, ahead=ahead)


_NO_END: tuple[Norm | None, float] = (None, 1.0)


def token_wise_from(layer: Sequence[Sublayer | Spec]) -> int:
    """The number of the first part of a layer from which on all blocks are token-wise
    (:attr:`~llmk.tree.Block.is_token_wise`); that of its parts where there is none."""
    parts = [isinstance(part, Sublayer) and part.block.is_token_wise for part in layer]
    return next((i for i in range(len(parts)) if all(parts[i:])), len(parts))


def weight_map(program: Program) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor that a checkpoint must have, by name. Experts are listed one by one."""
    found: dict[str, tuple[int, ...]] = {}
    for name, shape, copies in program.tensors.values():
        found |= {name.format(number): shape for number in range(copies)} if copies else {name: shape}
    return found


def _partial(linear: Linear) -> Linear:
    return replace(linear, partial=True)


def _op(op: str, facts: dict[str, Any]) -> OpFacts:
    return OpFacts(site=op, op=op, facts=facts)


def _check_ends(post: Norm | None, scale: float, norm: Norm | None, residual_dtype: str) -> None:
    """Checks the end of a block, and the norm before the next, for what no op can compute."""
    for each in (post, norm):
        if each is not None and each.centered and (post is not None or residual_dtype):
            raise PluginError(
                f"{_shown(each)} is centered, next to {'a norm after a block' if post else 'a wide residual'}",
                hint="make it a root-mean-square norm, or leave out the other; no op has both",
            )
        if each is not None and not each.centered and (each.bias or not each.weighted):
            raise PluginError(
                f"{_shown(each)} is a root-mean-square norm without weight, or with a bias",
                hint="only centered norms may be so",
            )
    if post is None:
        return
    if scale != 1.0:
        raise PluginError(
            f"{_shown(post)} norms the output of a block that has the scale {scale}",
            hint="leave out one of them; no op has both",
        )
    if norm is not None and (post.eps, post.offset) != (norm.eps, norm.offset):
        raise PluginError(
            f"{_shown(post)} and {_shown(norm)}, between two blocks, differ in eps or offset",
            hint="make them equal; the op that spans both has one of each",
        )


def _shown(spec: Spec) -> str:
    return f"{type(spec).__name__} at {spec.at!r}"

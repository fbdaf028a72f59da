"""Whether the kernels of an op can be called like its reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llmk.api import KernelSpec, Piece, Tier
from llmk.kernel.contracts import NotFollowed, check_call
from llmk.kernel.loader import load_object, not_followed

if TYPE_CHECKING:
    from llmk.kernel.registry import Registered, Registry


@dataclass(frozen=True, slots=True)
class OpReference:
    """What says how an op is called."""

    registered: Registered[KernelSpec]

    def check(self, found: Callable[..., Any], piece: Piece) -> None:
        """Raises PluginError where a kernel of the op, which ``piece`` names, doesn't take the reference's
        arguments."""
        spec, plugin = self.registered.spec, self.registered.plugin
        if piece.implementation == spec.implementation:
            return
        like = _op(load_object(spec.implementation, plugin=plugin, id=spec.id), spec.parts)
        built = _op(found, piece.parts)
        if like is None or built is None:
            return
        try:
            check_call(built, like, f"the arguments of {spec.id}")
        except NotFollowed as error:
            wheel = f"{piece.distribution} {piece.version}"
            raise not_followed(piece.implementation, wheel, piece.id, error) from error


def reference_ops(registry: Registry) -> dict[str, OpReference]:
    """The reference of each op: of several, the one with the highest score."""
    kernels = [kernel for kernel in registry.kernels("op") if kernel.spec.tier is Tier.REFERENCE]
    return {kernel.spec.op: OpReference(kernel) for kernel in sorted(kernels, key=lambda kernel: kernel.spec.score)}


def _op(found: Callable[..., Any], parts: Sequence[str]) -> Callable[..., Any] | None:
    """The op that a kernel implements; a composite one is made of parts that are never called. ``None`` where its
    factory wants to know more of them."""
    if not parts:
        return found
    try:
        op: Callable[..., Any] = found(dict.fromkeys(parts, _part))
    except Exception:
        return None
    return op


def _part(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("a composite op is made of its parts, and calls none of them then")

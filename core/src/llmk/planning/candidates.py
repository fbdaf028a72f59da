"""Which kernels could serve a site, whatever was chosen for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmk.api import Choice, KernelSpec, Rejection, Tier
from llmk.planning.advice import ABLE

if TYPE_CHECKING:
    from llmk.kernel.registry import Registry


def is_able(out: Rejection) -> bool:
    """Whether what was turned down could serve."""
    return all(reason.code in ABLE for reason in out.reasons)


def able(registry: Registry, choice: Choice) -> list[KernelSpec]:
    """All that could serve the site of ``choice``. Of references only the best, which others are compared with; it is
    the first."""
    others = [out.id for out in choice.rejected if is_able(out)]
    ids = {*(piece.id for piece in choice.pieces), *others}
    specs = [kernel.spec for kernel in registry.kernels(choice.kind) if kernel.spec.id in ids]
    specs.sort(key=lambda spec: (spec.tier, -spec.score))
    references = [spec for spec in specs if spec.tier is Tier.REFERENCE]
    return references[:1] + [spec for spec in specs if spec not in references]

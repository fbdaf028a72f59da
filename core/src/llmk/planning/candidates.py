"""The kernels that support a site, chosen or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmk.api import Choice, KernelSpec, Rejection, Tier
from llmk.planning.advice import ABLE

if TYPE_CHECKING:
    from llmk.kernel.registry import Registry


def is_able(out: Rejection) -> bool:
    """Whether a rejected candidate supports the site's query."""
    return all(reason.code in ABLE for reason in out.reasons)


def able(registry: Registry, choice: Choice) -> list[KernelSpec]:
    """All kernels that support the site of ``choice``. Of the references, only the best is included, as the first; the
    others are compared with it."""
    others = [out.id for out in choice.rejected if is_able(out)]
    ids = {*(piece.id for piece in choice.pieces), *others}
    specs = [kernel.spec for kernel in registry.kernels(choice.kind) if kernel.spec.id in ids]
    specs.sort(key=lambda spec: (spec.tier, -spec.score))
    references = [spec for spec in specs if spec.tier is Tier.REFERENCE]
    return references[:1] + [spec for spec in specs if spec not in references]

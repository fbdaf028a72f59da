"""What was chosen and why, for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llmk.api import Choice, Plan
from llmk.kernel.ranking import END


def render_rows(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A plain text table."""
    table = [list(header), *(list(row) for row in rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def render_table(plan: Plan) -> str:
    """The start-up table: platform, model, every site with kernel, wheel, tier and reason; then warnings and hints."""
    platform = plan.platform
    lines = [
        f"platform  {platform.label} ({plan.platform_id}){f': {platform.device_name}' if platform.device_name else ''}",
        f"model     {plan.architecture} by {plan.model}, {plan.dtype}"
        + (f", weights by {plan.quantization}" if plan.quantization else ""),
        f"parallel  {plan.tensor} x {plan.pipeline} processes (tensor x pipeline)",
        "",
        render_rows(("site", "tokens", "kernel", "wheel", "tier", "why"), list(_rows(plan.choices))),
    ]
    lines += [f"warning: {warning}" for warning in plan.warnings]
    lines += [f"could also serve: {line}" for line in could_serve(plan)]
    return "\n".join(lines)


def could_serve(plan: Plan) -> list[str]:
    """Kernels of wheels that nobody vouches for, with the config line that chooses them."""
    found = [
        f"{rejection.id} ({rejection.distribution}) at {choice.site}; {reason.hint}"
        for choice in plan.all_choices()
        for rejection in choice.rejected
        for reason in rejection.reasons
        if reason.code == "not_vouched"
    ]
    return list(dict.fromkeys(found))


def _rows(choices: Sequence[Choice], depth: int = 0) -> Iterator[list[str]]:
    for choice in choices:
        for i, piece in enumerate(choice.pieces):
            site = "" if i else "  " * depth + (choice.op if depth else choice.site)
            tokens = "" if len(choice.pieces) == 1 else f"{piece.start}-{piece.stop - 1 if piece.stop < END else ''}"
            yield [site, tokens, piece.id, f"{piece.distribution} {piece.version}", piece.tier, piece.why]
        yield from _rows(choice.parts, depth + 1)

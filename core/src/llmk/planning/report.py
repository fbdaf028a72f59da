"""Human-readable tables of what was chosen and why."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from llmk.api import Choice, LinearQuery, MoEQuery, OpQuery, Plan, Reason, Rejection
from llmk.planning.ranking import END, ONLY
from llmk.planning.tables import render_pairs, render_rows, wrapped


def render_table(plan: Plan, width: int = 0) -> str:
    """Platform, model, every site with kernel, wheel, tier and reason; then warnings and hints. ``width``: columns of
    the terminal, 0: any."""
    platform = plan.platform
    device = f": {platform.device_name}" if platform.device_name else ""
    methods = f", weights by {', '.join(method.id for method in plan.quantization)}" if plan.quantization else ""
    pairs = [
        ("platform", f"{platform.label} ({plan.platform_id}){device}"),
        ("model", f"{plan.architecture} by {plan.model}, {plan.dtype}{methods}"),
        *(("format", line) for line in _formats(plan)),
        *(("states", f"{dtype} (cache.state_dtype)") for dtype in _state_dtypes(plan)),
        ("parallel", f"{plan.tensor} x {plan.pipeline} processes (tensor x pipeline)"),
    ]
    lines = [f"warning: {warning}" for warning in plan.warnings]
    lines += [f"left out: {line}" for line in with_gaps(plan)]
    lines += [f"could also serve: {line}" for line in could_serve(plan)]
    lines += [f"not built: {line}" for line in not_built(plan)]
    table = _site_table(list(_rows(plan.choices)), width)
    return "\n".join([render_pairs(pairs, width), "", table, *(wrapped(line, width) for line in lines)])


def _site_table(rows: list[list[str]], width: int) -> str:
    """With a column for wheels and tiers where there is room for it; otherwise the wheels are named below, and a tier
    where it is not the reason."""
    whole = render_rows(("site", "tokens", "kernel", "wheel", "tier", "why"), rows)
    if not width or max(map(len, whole.splitlines())) <= width:
        return whole
    wheels: dict[str, list[str]] = {}
    for _, _, id, wheel, _, _ in rows:
        ids = wheels.setdefault(wheel, [])
        ids += [] if (ours := f"{id.partition('.')[0]}.*") in ids else [ours]
    short = [[site, tokens, id, re.sub(r"\b(best score in )?tier ", "", why)] for site, tokens, id, _, _, why in rows]
    named = "wheels: " + ", ".join(f"{wheel} ({', '.join(ids)})" for wheel, ids in wheels.items())
    return f"{render_rows(('site', 'tokens', 'kernel', 'why'), short, width)}\n{wrapped(named, width)}"


def render_layouts(plan: Plan, width: int = 0) -> str:
    """A table of the sites with several measured layouts: the chosen one, and the time of each at every token count of
    the plan's traffic, in microseconds; empty if there are no such sites."""
    rows = []
    for choice in (choice for choice in plan.all_choices() if len(choice.alternatives) > 1):
        chosen = choice.layout if choice.layout in {each.name for each in choice.alternatives} else choice.id
        for i, each in enumerate(choice.alternatives):
            times = dict(each.microseconds)
            columns = [f"{times[tokens]:.1f}" if tokens in times else "-" for tokens, _ in plan.traffic]
            name = f"{each.name}{' (chosen)' if each.name == chosen else ''}"
            rows.append(["" if i else choice.site, name, *columns, f"{each.mean:.1f}"])
    counts = [f"{tokens:,} ({share:.0%})" for tokens, share in plan.traffic]
    title = f"layouts, by us of a call at the token counts of steps (traffic: {plan.traffic_source})"
    table = render_rows(("site", "layout", *counts, "mean"), rows, width)
    return f"\n{wrapped(title, width)}\n{table}" if rows else ""


def could_serve(plan: Plan) -> list[str]:
    """Kernels of wheels that are not trusted yet, with the config lines that choose them."""
    found = (
        f"{out.id} ({out.distribution}) at {choice.site}; {reason.hint}"
        for choice, out, reason in _lone_reasons(plan, "not_vouched")
        if reason.hint
    )
    return list(dict.fromkeys(found))


def with_gaps(plan: Plan) -> list[str]:
    """Kernels that are left out because no kernel of their layout supports the other token counts of a site."""
    sites: dict[tuple[str, str, Reason], list[str]] = {}
    for choice, out, reason in _lone_reasons(plan, "token_gap"):
        sites.setdefault((out.id, out.distribution, reason), []).append(choice.site)
    return [f"{id} ({wheel}) at {', '.join(at)}; {reason}" for (id, wheel, reason), at in sites.items()]


def not_built(plan: Plan) -> list[str]:
    """Kernels of libraries that a wheel was built without, by wheel, and how to get them."""
    kernels: dict[tuple[str, Reason], list[str]] = {}
    for _, out, reason in _lone_reasons(plan, "library"):
        kernels.setdefault((out.distribution, reason), []).append(out.id)
    return [f"{', '.join(dict.fromkeys(ids))} ({wheel}); {reason}" for (wheel, reason), ids in kernels.items()]


def _lone_reasons(plan: Plan, code: str) -> Iterator[tuple[Choice, Rejection, Reason]]:
    """The candidates that were rejected for a single reason with that code."""
    for choice in plan.all_choices():
        for out in choice.rejected:
            if [reason.code for reason in out.reasons] == [code]:
                yield choice, out, out.reasons[0]


def _state_dtypes(plan: Plan) -> list[str]:
    """The dtype of recurrent states, where it is not float32."""
    queries = (choice.query for choice in plan.choices)
    found = (query.facts.get("state_dtype") for query in queries if isinstance(query, OpQuery))
    return list(dict.fromkeys(str(dtype) for dtype in found if dtype))


def _formats(plan: Plan) -> Iterator[str]:
    """A line for each weight format of a quantized model, with its sites."""
    layers = {(each.kind, each.variant): len(each.members) for each in plan.variants}
    sites: dict[str, list[str]] = {}
    for choice in plan.choices:
        if isinstance(choice.query, (LinearQuery, MoEQuery)):
            count = layers.get((choice.kind, choice.site))
            name = f"{choice.site} ({count} layer{'s' if count > 1 else ''})" if count else choice.site
            sites.setdefault(choice.query.weight_format, []).append(name)
    methods = {method.weight_format: f" by {method.id}" for method in plan.quantization}
    for weight_format, names in sites.items() if plan.quantization else ():
        yield f"{weight_format}{methods.get(weight_format, '')}: {', '.join(names)}"


def _rows(choices: Sequence[Choice], depth: int = 0) -> Iterator[list[str]]:
    for choice in choices:
        for i, piece in enumerate(choice.pieces):
            site = "" if i else "  " * depth + (choice.op if depth else choice.site)
            tokens = "" if len(choice.pieces) == 1 else f"{piece.start}-{piece.stop - 1 if piece.stop < END else ''}"
            why = piece.why
            if piece.parts and choice.parts:
                why = "its parts, below" if why == ONLY else f"{why}; its parts, below"
            yield [site, tokens, piece.id, f"{piece.distribution} {piece.version}", piece.tier, why]
        yield from _rows(choice.parts, depth + 1)

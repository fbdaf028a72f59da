"""The rule by which platforms, model families, quantization methods, parsers and policies are chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeVar

from llmk.api import Reason, SelectionError, Verdict
from llmk.api.hooks import Spec
from llmk.kernel.first_party import how_to_install
from llmk.kernel.registry import Registered

if TYPE_CHECKING:
    from llmk.config import SelectSection

S = TypeVar("S", bound=Spec)


def elect(
    line: str,
    rules: SelectSection,
    claims: Sequence[tuple[Registered[S], Verdict]],
    *,
    rank: Callable[[Any], int] = lambda spec: 0,
    may_force: bool = False,
) -> tuple[Registered[S] | None, str]:
    """The winner and the reason: pinned, else preferred, else of the highest rank; ``None`` if no candidate is able.

    ``line`` is the config section of the choice, as a user writes it. A pin is an id or a spec's name; with
    ``may_force`` it wins even if its verdict is negative. Raises SelectionError if the pin is unknown or can't be
    honoured, and on a tie.
    """
    why = "claims it"
    able = [r for r, verdict in claims if verdict and r.spec.id not in rules.avoid]
    preferred = [r for id in rules.prefer for r in able if r.spec.id == id]
    if rules.use:
        pinned = [(r, verdict) for r, verdict in claims if rules.use in (r.spec.id, getattr(r.spec, "name", ""))]
        if not pinned:
            raise unknown_id(line, str(rules.use), [r.spec.id for r, _ in claims])
        able, why = [r for r, verdict in pinned if verdict or may_force], f"pinned by {line} use"
        if not able:
            reasons = [reason for _, verdict in pinned for reason in verdict.reasons]
            raise SelectionError(f"{rules.use} is pinned by {line} use, but can't serve", reasons=reasons)
    elif preferred:
        able, why = preferred[:1], f"preferred by {line} prefer"
    best = [r for r in able if rank(r.spec) == max(rank(other.spec) for other in able)]
    if len(best) > 1:
        names = " and ".join(f"{r.spec.id} of {r.plugin.wheel}" for r in best)
        raise SelectionError(f"{names} tie", hint=f'settle it with {line} use = "{best[0].spec.id}"')
    return (best[0], why) if best else (None, "nothing claims it")


def unknown_id(line: str, id: str, known: Sequence[str], reasons: Sequence[Reason] = ()) -> SelectionError:
    """The error for an id in the configuration that no plugin registers."""
    close = get_close_matches(id, known, n=3, cutoff=0.5)
    listed = f"did you mean {' or '.join(close)}?" if close else f"installed: {', '.join(known) or 'none'}"
    hint = how_to_install(id) or listed
    return SelectionError(f"{line} names {id!r}, which is not installed", reasons=reasons, hint=hint)

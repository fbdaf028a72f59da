"""Whether a candidate supports a query: its declared needs are checked first, then its ``supports(query)`` is called.

The resolver uses this, and tests of plugins may use it too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import importlib_metadata as metadata
from packaging.requirements import InvalidRequirement, Requirement

from llmk.api.errors import describe
from llmk.api.platform import PlatformFacts
from llmk.api.query import Query
from llmk.api.specs import KernelSpec, ModelSpec, Needs, TokenBand
from llmk.api.verdict import OK, Verdict, no

_NOT_INVARIANT = no("not_deterministic", wanted="batch invariance", found="none declared")


def match(spec: KernelSpec, query: Query) -> Verdict:
    """Whether ``spec`` supports ``query``, with every reason why it doesn't, not only the first."""
    verdict = check_needs(spec.needs, query.platform, query.dtype)
    if query.deterministic:
        verdict &= _check_invariance(spec)
    supported: Verdict = evaluate(spec.supports, query)
    return verdict & supported


def match_model(spec: ModelSpec, architecture: str, *, deterministic: bool) -> Verdict:
    """Whether a model family supports an architecture, and batch invariance if ``deterministic``."""
    if {architecture, "*"}.isdisjoint(spec.architectures):
        return no("architecture", wanted=architecture)
    return OK if spec.deterministic or not deterministic else _NOT_INVARIANT


def evaluate(function: Callable[[Any], Any], argument: object, result_type: type = Verdict) -> Any:
    """Calls a plugin's ``function``; an exception, or a result of another type, becomes a refusing verdict."""
    name = getattr(function, "__name__", "supports")
    try:
        result = function(argument)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return no("supports_raised", wanted=name, found=describe(error))
    if isinstance(result, result_type):
        return result
    return no("supports_raised", wanted=f"{name} to return {result_type.__name__}", found=result)


def check_needs(needs: Needs, facts: PlatformFacts, dtype: str) -> Verdict:
    """Checks declared needs against a platform's facts, the engine's dtype and the installed packages."""
    verdict = OK
    if needs.platforms and facts.name not in needs.platforms:
        verdict &= no("platform", wanted=" or ".join(needs.platforms), found=facts.name)
    for feature in needs.features:
        if feature not in facts.features:
            verdict &= no("missing_feature", wanted=feature, found=", ".join(sorted(facts.features)) or "none")
    least = needs.min_arch.get(facts.arch_family)
    if needs.min_arch and (least is None or facts.arch_version < tuple(least)):
        wanted = " or ".join(f"{family} >= {_dotted(version)}" for family, version in needs.min_arch.items())
        found = f"{facts.arch_family or facts.arch} {_dotted(facts.arch_version)}".strip()
        verdict &= no("arch", wanted=wanted, found=found)
    if needs.dtypes and dtype not in needs.dtypes:
        verdict &= no("dtype", wanted=" or ".join(needs.dtypes), found=dtype)
    for package in needs.packages:
        verdict &= _check_package(package)
    return verdict


def _check_invariance(spec: KernelSpec) -> Verdict:
    """Batch invariance needs one kernel for all token counts, so a kernel with gaps in its token bands is refused."""
    if not spec.deterministic:
        return _NOT_INVARIANT
    bands = sorted(spec.bands, key=lambda band: band.start)
    edges = [1, *(edge for band in bands for edge in (band.start, band.stop)), TokenBand().stop]
    if edges[::2] == edges[1::2]:
        return OK
    found = ", ".join(f"{band.start}-{band.stop - 1}" for band in bands)
    return no("token_gap", wanted="every token count, for batch invariance", found=found)


def _dotted(version: Iterable[int]) -> str:
    return ".".join(str(part) for part in version)


@cache
def _check_package(package: str) -> Verdict:
    try:
        requirement = Requirement(package)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            return OK
        version = metadata.version(requirement.name)
    except InvalidRequirement as error:
        return no("bad_requirement", wanted=package, found=str(error).splitlines()[0])
    except metadata.PackageNotFoundError:
        return no("package_missing", wanted=package, found="not installed", hint=f"pip install '{package}'")
    if requirement.specifier.contains(version, prereleases=True):
        return OK
    return no("package_version", wanted=package, found=version, hint=f"pip install '{package}'")

"""Whether a candidate supports a query: its declared needs are checked first, then its ``supports(query)`` is called.

The resolver uses this, and tests of plugins may use it too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, fields
from functools import cache
from importlib.util import find_spec
from typing import Any

import importlib_metadata as metadata
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from llmk.api.errors import describe
from llmk.api.platform import PlatformFacts
from llmk.api.query import BOUNDS, FIRST_FIELDS, MoEQuery, OpQuery, Query
from llmk.api.specs import KernelSpec, ModelSpec, Needs, Tier, TokenBand
from llmk.api.verdict import OK, Verdict, no

_NOT_TO_KNOW = BOUNDS | {"deterministic"}
"""Fields of queries that kernels need not know: specs have a declaration of their own for ``deterministic``."""
_NOT_INVARIANT = no("not_deterministic", wanted="batch invariance", found="none declared")


def match(spec: KernelSpec, query: Query, facts: Collection[str] = ()) -> Verdict:
    """Whether ``spec`` supports ``query``, with every reason why it doesn't, not only the first. ``facts`` are those of
    an op that its kernels must know (:func:`facts_to_know`)."""
    verdict = check_needs(spec.needs, query.platform, query.dtype) & check_known(spec, query, facts)
    if query.deterministic:
        verdict &= _check_invariance(spec)
    supported: Verdict = evaluate(spec.supports, query)
    return verdict & supported


def check_known(spec: KernelSpec, query: Query, facts: Collection[str] = ()) -> Verdict:
    """Refuses a kernel that doesn't know a query field whose value differs from its default, one of the facts of
    experts, or one of an op's ``facts``."""
    neutral = neutral_values(type(query))
    asked = {name: value for name in neutral if (value := getattr(query, name)) != neutral[name]}
    if isinstance(query, MoEQuery):
        asked |= query.facts
    if isinstance(query, OpQuery):
        asked |= {name: query.facts[name] for name in facts if name in query.facts}
    verdict = OK
    for name in sorted(asked.keys() - spec.knows):
        verdict &= no("not_understood", wanted=f"{name} = {asked[name]!r}", found=f"a kernel that does not know {name}")
    return verdict


def neutral_values(query_type: type) -> Mapping[str, Any]:
    """The optional fields of a query, which kernels declare to know, and their defaults."""
    return _neutral_values(query_type)


def facts_to_know(op: str, specs: Iterable[KernelSpec]) -> frozenset[str]:
    """The facts of an op that its references declare to know, beyond those of the first release."""
    references = (spec for spec in specs if op and spec.op == op and spec.tier is Tier.REFERENCE)
    return frozenset().union(*(spec.knows - FIRST_FIELDS for spec in references))


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
    if needs.archs and not any(facts.arch == arch if isinstance(arch, str) else facts in arch for arch in needs.archs):
        version = ".".join(map(str, facts.arch_version))
        found = f"{facts.arch} ({facts.arch_family} {version})" if facts.arch_family else facts.arch
        verdict &= no("arch", wanted=" or ".join(map(str, needs.archs)), found=found)
    if needs.dtypes and dtype not in needs.dtypes:
        verdict &= no("dtype", wanted=" or ".join(needs.dtypes), found=dtype)
    for package in needs.packages:
        verdict &= _check_package(package)
    return verdict


@cache
def _neutral_values(query_type: type) -> Mapping[str, Any]:
    own = {field.name: field.default for field in fields(query_type) if field.default is not MISSING}
    return {name: default for name, default in own.items() if name not in _NOT_TO_KNOW}


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


def _version(name: str) -> str:
    """The version of a distribution, or of one of another name that has the same package: builds of vendors do."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        module = canonicalize_name(name).replace("-", "_")
        if find_spec(module) is None or not (owners := metadata.packages_distributions().get(module)):
            raise
        return metadata.version(owners[0])


@cache
def _check_package(package: str) -> Verdict:
    try:
        requirement = Requirement(package)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            return OK
        version = _version(requirement.name)
    except InvalidRequirement as error:
        return no("bad_requirement", wanted=package, found=str(error).splitlines()[0])
    except metadata.PackageNotFoundError:
        return no("package_missing", wanted=package, found="not installed", hint=f"pip install '{package}'")
    if requirement.specifier.contains(version, prereleases=True):
        return OK
    return no("package_version", wanted=package, found=version, hint=f"pip install '{package}'")

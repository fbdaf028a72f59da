"""Verdicts: whether a candidate supports a query, and why not."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason why a candidate can't be used.

    ``code`` is stable and machine-readable (``missing_feature``, ``dtype``, ``head_dim``, ``package_missing``,
    ``import_failed``, ``disabled``, ``avoided``, …). ``wanted`` is what the query or the candidate requires, ``found``
    is the actual value.
    """

    code: str
    wanted: str = ""
    found: str = ""
    hint: str = ""

    def about(self, id: str) -> Reason:
        """The same reason with the candidate's id in its hint, for lists of reasons of several candidates."""
        return replace(self, hint=f"{id}: {self.hint}" if self.hint else id)

    def __str__(self) -> str:
        text = self.code.replace("_", " ")
        if self.wanted:
            text += f": wanted {self.wanted}"
        if self.found:
            text += f", found {self.found}" if self.wanted else f": {self.found}"
        return f"{text} ({self.hint})" if self.hint else text


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a candidate supports a query, and if not, all reasons."""

    ok: bool
    reasons: tuple[Reason, ...] = ()

    def __bool__(self) -> bool:
        return self.ok

    def __and__(self, other: Verdict) -> Verdict:
        """True if both are; has the reasons of both, so that a user sees all of them at once."""
        return Verdict(self.ok and other.ok, self.reasons + other.reasons)


OK = Verdict(True)


def no(code: str, *, wanted: object = "", found: object = "", hint: str = "") -> Verdict:
    """A negative verdict with one reason."""
    return Verdict(False, (Reason(code, str(wanted), str(found), hint),))

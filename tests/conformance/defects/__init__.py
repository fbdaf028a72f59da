"""Planted defects: providers that are right but for one mistake, each of which a suite must find."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Defect:
    """A mistake: its ``id``, what it is in a sentence, the ``provider`` that makes it (what the spec names, or the
    fields of the spec that it changes), and the name of a case that fails of it, or a part of that."""

    id: str
    what: str
    provider: Any
    case: str

    def __str__(self) -> str:
        return self.id

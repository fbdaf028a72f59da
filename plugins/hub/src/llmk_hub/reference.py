"""What names a model of the hub: ``org/name``, perhaps a revision, and perhaps one of several files."""

from __future__ import annotations

import re
from dataclasses import dataclass

FORM = "org/name[@revision][:file]"
_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?"
_PAGE = re.compile(r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/|hf://(?:models/)?")
"""What a name that is copied from a browser, or from another tool, starts with."""
_REFERENCE = re.compile(rf"({_PART}/{_PART})(?:@([A-Za-z0-9_][\w./-]*))?(?::([\w][\w./-]*))?", re.ASCII)
_FILES = (".gguf", ".safetensors", ".json", ".bin", ".pth")
_LONGEST = 96


@dataclass(frozen=True, slots=True)
class Reference:
    """``revision`` is a branch, a tag or a commit; empty: the repository's main branch. ``choice`` is a file, or a word
    of its name; empty: none."""

    repository: str
    revision: str = ""
    choice: str = ""

    @property
    def branch(self) -> str:
        """The revision, or the main branch."""
        return self.revision or "main"

    def __str__(self) -> str:
        return self.repository + (f"@{self.revision}" if self.revision else "")


def parse(text: str) -> Reference | None:
    """The parts of a name; ``None`` if it has another form, or is that of a file."""
    if page := _PAGE.match(text):
        text = text[page.end() :].rstrip("/").replace("/tree/", "@", 1)
    found = _REFERENCE.fullmatch(text)
    if not found or len(found[1]) > _LONGEST or "--" in found[1] or ".." in text:
        return None
    if not found[3] and text.lower().endswith(_FILES):
        return None
    return Reference(found[1], found[2] or "", found[3] or "")

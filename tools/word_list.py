"""Finds old idioms of this project's prose, and names what to write instead. Exits with 1 where there are any.

A reader should understand a sentence at first reading, in the field's own terms. Words are searched whole, in any case
and across line ends; in Python only in comments, string literals (docstrings included) and identifiers, whose words
``_`` and capital letters divide. ``is None`` in code is therefore no hit, but "is none" in a docstring is one.

    python tools/word_list.py               # everything that CI checks
    python tools/word_list.py core/src      # some folders or files
    python tools/word_list.py --count       # hits per folder
"""

from __future__ import annotations

import argparse
import io
import keyword
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SEARCHED = ("core", "models", "backends-*", "plugins", "docs", "README.md", "CONTRIBUTING.md")
SUFFIXES = (".py", ".md", ".toml", ".in", ".c")

DATA = {
    "models/src/llmk_models/demo/": "the demo checkpoint: text of a model",
    "models/training/corpus/": "what the demo model is trained on",
    "plugins/parsers/tests/cases/": "recorded answers of models",
}
"""Folders that hold text of models rather than prose of this project, with the reason."""

ALLOWED = {
    "product_name": "a file of a driver in sysfs",
    "tool▁calls▁begin": "DeepSeek's control token",
    "BEGIN IMMEDIATE": "a statement of SQLite",
    "\0 begin \0": "a field of vLLM's structural tags",
    "'begin'": "the same",
    '"begin"': "the same",
    "begin_tool": "markers of PLaMo",
    "begin_think": "markers of PLaMo",
    "tool▁call▁begin": "DeepSeek's control token",
    "tool_calls_begin": "Step's control token",
    "tool_call_begin": "Step's and Kimi's control token",
    "tool_calls_section_begin": "Kimi's control token",
    "tool_call_section_begin": "Kimi's control token",
    "tool_call_argument_begin": "Kimi's control token",
    "itertools.product": "a function of the standard library",
    "have not told": "a reply in the demo model's training data, which models/training/evaluate.py looks for",
}
"""Exact strings that are no hits wherever they stand, with the reason."""

IDIOMS = {
    r"tells?|telling|told": "report(s), say(s), reported",
    r"beg[aiu]n|begins|beginning": "start(s), started",
    r"(?:gives?|gave|given|giving) way": "is preempted, yields",
    r"(?:lets?|letting) in": "admit(s), admitted",
    r"eldest": "oldest",
    r"none's": "no one's; 'exceptions are ignored'",
    r"(?:for|to) people": "human-readable",
    r"beside": "alongside, next to, at the same time",
    r"ask(?:s|ed|ing)? (?:of|for)": "request(s), need(s), require(s); query fields",
    r"what (?:\w+ ){1,3}asks?": "query fields, requirements",
    r"(?<!dot[\s_-])(?<!matrix[\s_])(?<!outer[\s_])products?": "GEMM, matrix product, small-M GEMM",
    r"behind the host": "asynchronously; asynchronous scheduling",
    r"whoever": "who, those who, any caller that",
    r"lest": "so that ... not",
    r"anew": "again",
    r"thereof": "of it",
    r"mend(?:s|ed|ing)?": "fix(es), fixed, repair",
    r"(?:come|comes|came|coming) of": "result; 'whatever came of it' is 'whether or not it failed'",
    r"bring(?:s|ing)?|brought": "provide(s), contain(s), return(s)",
    r"one another": "each other",
    r"likeliest": "most likely, top",
    r"under way": "running, in progress",
    r"whatever": "any, no matter which, always",
    r"nobody": "no one, no client",
    r"what it is (?:told|asked|issued|at)": "its instruction, request, work",
}
"""Idioms, as regular expressions in which a space stands for any gap between words, and what to write instead."""

CASED = {r"(?<![Tt]here[\s_])(?:is|are) none": "is not one; 'is no X' is 'is not an X'"}
"""The same, found in this case alone: ``is None`` in a docstring is Python."""

_GAP = r"[\s_-]+"
_BREAK = "\0"


def _pattern(idioms: Iterable[str], flags: int) -> re.Pattern[str]:
    """One expression for all ``idioms``; its numbered groups are in their order. ``_`` divides words."""
    groups = "|".join(f"({idiom.replace(' ', _GAP)})" for idiom in idioms)
    return re.compile(f"(?<![^\\W_])(?:{groups})(?![^\\W_])", flags)


_SEARCHES = (
    (_pattern(IDIOMS, re.IGNORECASE), tuple(IDIOMS.values())),
    (_pattern(CASED, 0), tuple(CASED.values())),
)


@dataclass(frozen=True, slots=True, order=True)
class Hit:
    """An old idiom: where it is, as it is written, and what to write instead."""

    path: str
    line: int
    word: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.word!r}: {self.instead}"


def files(root: Path = ROOT) -> list[str]:
    """The files that are searched, as paths below ``root``: those that git knows or would take."""
    listed = subprocess.run(  # nosec B607 # a developer's own git, as PATH has it
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate", "--", *SEARCHED],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    return [path for path in listed if searched(path) and (root / path).is_file()]


def searched(path: str) -> bool:
    """Whether ``path`` holds prose of this project."""
    return path.endswith(SUFFIXES) and not path.startswith(tuple(DATA))


def hits(path: str, text: str) -> list[Hit]:
    """Every old idiom in a file's name and in its ``text``, in order."""
    found = [Hit(path, 1, word, instead) for _, word, instead in _search(path)]
    texts = _python(text) if path.endswith(".py") else [(1, text)]
    for first, prose in texts:
        found += [Hit(path, first + prose.count("\n", 0, at), word, how) for at, word, how in _search(prose)]
    return sorted(found)


def _search(prose: str) -> Iterator[tuple[int, str, str]]:
    """Place, wording and replacement of every idiom in ``prose``."""
    for allowed in ALLOWED:
        prose = prose.replace(allowed, _BREAK * len(allowed))
    for pattern, instead in _SEARCHES:
        for match in pattern.finditer(prose):
            yield match.start(), " ".join(match[0].split()), instead[(match.lastindex or 1) - 1]


def _python(source: str) -> Iterator[tuple[int, str]]:
    """Prose of a module, each with the line on which it starts: its comments and strings as one text, in which all
    else is a break, so that what is wrapped over several comments or strings is found; and every identifier."""
    lines = source.splitlines(keepends=True)
    prose = [re.sub(r"[^\s]", _BREAK, line) for line in lines]
    before = ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = tokenize.tok_name[token.type]
        if kind == "NAME" and not keyword.iskeyword(token.string):
            yield token.start[0], ("itertools." if before == "itertools." else "") + _words(token.string)
        elif kind in ("COMMENT", "STRING", "FSTRING_START", "FSTRING_MIDDLE", "FSTRING_END"):
            _copy(lines, prose, token)
        before = f"{before}." if token.string == "." else token.string
    yield 1, "".join(prose)


def _copy(lines: Sequence[str], prose: list[str], token: tokenize.TokenInfo) -> None:
    """Puts a comment or string into ``prose`` where it stands in the source, without its marks and escapes."""
    (first, start), (last, stop) = token.start, token.end
    for number in range(first - 1, last):
        line = lines[number]
        left, right = (start if number == first - 1 else 0), (stop if number == last - 1 else len(line))
        part = re.sub(r"\\[nrtx]|[\"#]", lambda mark: " " * len(mark[0]), line[left:right])
        if number == first - 1:
            part = re.sub(r"^[rbfuRBFU]{1,2}(?=[ '])|^'", lambda mark: " " * len(mark[0]), part)
        prose[number] = prose[number][:left] + part + prose[number][right:]


def _words(identifier: str) -> str:
    """``identifier`` with its words apart."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", identifier)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints every hit, or how many there are per folder; 1 where there are any."""
    parser = argparse.ArgumentParser(description="Find old idioms, and what to write instead.")
    parser.add_argument("paths", nargs="*", help="folders or files, rather than all")
    parser.add_argument("--count", action="store_true", help="print the number of hits per folder")
    args = parser.parse_args(arguments)
    chosen = tuple(path.rstrip("/") for path in args.paths)
    paths = [
        path for path in files() if not chosen or path in chosen or path.startswith(tuple(f"{c}/" for c in chosen))
    ]
    found = [hit for path in paths for hit in hits(path, (ROOT / path).read_text())]
    if args.count:
        folders = Counter(str(Path(hit.path).parent) for hit in found)
        print("".join(f"{count:6} {folder}\n" for folder, count in sorted(folders.items())), end="")
    else:
        print("".join(f"{hit}\n" for hit in found), end="")
    print(f"{len(found)} old idioms in {len(paths)} files")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())

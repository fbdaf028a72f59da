"""How ``llmk chat`` shows an answer on a terminal: Markdown as it is written, thinking dimmed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.segment import Segment

REFRESH_SECONDS = 0.08
_CONTROLS = {
    code: None if code == 0x0D else chr(0x2400 + code) if code < 0x20 else "\ufffd"
    for code in (*range(0x20), *range(0x7F, 0xA0))
    if chr(code) not in "\n\t"
}


class Screen(Protocol):
    """Shows the deltas of answers."""

    def show(self, delta: Mapping[str, Any]) -> None:
        """Shows one delta."""
        ...

    def end(self) -> None:
        """Ends the answer."""
        ...


def harmless(text: str) -> str:
    """``text`` without control characters, by which a model could rewrite the screen or the clipboard."""
    return text.translate(_CONTROLS)


def screen() -> Screen | None:
    """A screen for standard output; ``None`` if rich is not installed, or there is no terminal that can do it."""
    try:
        from rich.console import Console
    except ImportError:
        return None
    console = Console(highlight=False, markup=False)
    return MarkdownScreen(console) if console.is_terminal and not console.is_dumb_terminal else None


def split_blocks(text: str) -> tuple[list[str], str]:
    """The blocks of Markdown that are complete, and the rest. A block ends with a fence of code, or where a blank line
    is followed by text that is not indented."""
    blocks, start, at, fence, blank = [], 0, 0, "", False
    for line in text.splitlines(keepends=True):
        stripped, ends = line.strip(), False
        if blank and stripped and line[0] not in " \t":
            blocks.append(text[start:at])
            start = at
        if not line.endswith("\n"):
            break
        at += len(line)
        if fence:
            ends = stripped.startswith(fence) and not stripped.strip(fence[0])
            fence = "" if ends else fence
        elif line.startswith(("```", "~~~")):
            fence = stripped[: len(stripped) - len(stripped.lstrip(stripped[0]))]
        blank = not fence and not stripped
        if ends:
            blocks.append(text[start:at])
            start = at
    return [block for block in blocks if block.strip()], text[start:]


class MarkdownScreen:
    """Shows complete blocks for good, and the end of the one that is being written as it grows."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self._console = console
        self._live = Live(console=console, transient=True, auto_refresh=False)
        self._kind = ""
        self._text = ""
        self._refreshed = 0.0
        self._empty = True

    def show(self, delta: Mapping[str, Any]) -> None:
        """Shows one delta."""
        if not self._live.is_started:
            self._live.start()
        if text := delta.get("reasoning_content"):
            self._add("thinking", text)
        for call in delta.get("tool_calls", ()):
            function = call["function"]
            if name := function.get("name"):
                self._flush()
                self._add("call", f"{name} ")
            self._add("call", function.get("arguments", ""))
        if text := delta.get("content"):
            self._add("content", text)

    def end(self) -> None:
        """Ends the answer."""
        self._flush()
        self._live.stop()
        self._kind, self._empty = "", True

    def _add(self, kind: str, text: str) -> None:
        if kind != self._kind:
            self._flush()
            self._kind = kind
        self._text = (self._text + harmless(text)).lstrip("\n")
        if kind == "content":
            blocks, self._text = split_blocks(self._text)
            for block in blocks:
                self._print(block)
        if time.monotonic() - self._refreshed > REFRESH_SECONDS:
            room = max(1, self._console.size.height - 2)
            self._live.update(_Lines(self._lines(self._text)[-room:]), refresh=True)
            self._refreshed = time.monotonic()

    def _flush(self) -> None:
        """Shows what is not complete yet for good."""
        rest, self._text = self._text, ""
        if rest.strip():
            self._print(rest)

    def _print(self, text: str) -> None:
        self._live.update("", refresh=True)
        if not self._empty:
            self._console.print()
        self._console.print(_Lines(self._lines(text)), end="")
        self._empty = False

    def _lines(self, text: str) -> list[list[Segment]]:
        """``text`` as lines of the terminal, without blank ones around."""
        lines = self._console.render_lines(self._rendered(text.strip("\n")), pad=False)
        filled = [i for i, line in enumerate(lines) if any(segment.text.strip() for segment in line)]
        return lines[filled[0] : filled[-1] + 1] if filled else []

    def _rendered(self, text: str) -> RenderableType:
        from markdown_it import MarkdownIt
        from rich.markdown import Markdown
        from rich.padding import Padding
        from rich.text import Text

        if self._kind != "content":
            return Padding(Text(text, style="dim"), (0, 0, 0, 2))
        rendered = Markdown("", hyperlinks=False, code_theme="ansi_dark")
        # rich leaves HTML out; here it is text, as the model wrote it.
        parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
        rendered.parsed = parser.parse(text)
        return rendered


class _Lines:
    """Lines that were rendered before."""

    def __init__(self, lines: list[list[Segment]]) -> None:
        self._rows = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment

        for line in self._rows:
            yield from line
            yield Segment.line()

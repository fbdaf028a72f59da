"""Plots as SVG files, which any browser opens: a timeline of requests, and a Pareto plot of a sweep."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from llmk_bench.sample import Sample

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 960, 560, 70, 44, 50
MOST_ROWS = 1500
WAITING, ANSWERING, FAILED, LINE = "#e8a33d", "#3b7dd8", "#d23f3f", "#888"
STYLE = (
    "<style>svg{background:#fff;color:#222}text{font:12px sans-serif;fill:currentColor}"
    "@media(prefers-color-scheme:dark){svg{background:#16181d;color:#ddd}}</style>"
)
Point = tuple[float, float, str]


def timeline(samples: Sequence[Sample], title: str) -> str:
    """A row for each request, by the time at which it was due: how long it waited for its first token, and how long its
    answer took. Of very many requests, every n-th is shown."""
    shown = list(samples)[:: math.ceil(len(samples) / MOST_ROWS) or 1]
    ends = [sample.arrivals[-1] if sample.arrivals else sample.sent for sample in shown]
    scale = _Scale(0.0, max(ends, default=0.0) or 1.0, LEFT, WIDTH - 20)
    height = (HEIGHT - TOP - BOTTOM) / max(1, len(shown))
    parts = [
        _axis(scale, "seconds"),
        _legend((WAITING, "to the first token"), (ANSWERING, "answer"), (FAILED, "failed")),
    ]
    for row, sample in enumerate(shown):
        y = TOP + row * height
        if sample.error:
            parts.append(_bar(scale(sample.due), scale(sample.due) + 4, y, height, FAILED))
            continue
        parts.append(_bar(scale(sample.due), scale(sample.arrivals[0]), y, height, WAITING))
        parts.append(_bar(scale(sample.arrivals[0]), scale(sample.arrivals[-1]), y, height, ANSWERING))
    return _document(title, parts)


def pareto(points: Sequence[Point], title: str) -> str:
    """Tokens per second of one user (x) against those of all (y), one point a load. The line joins the loads that no
    other beats in both."""
    best = frontier(points)
    right = max((x for x, _, _ in points), default=1.0) * 1.1
    top = max((y for _, y, _ in points), default=1.0) * 1.1
    across, up = _Scale(0.0, right, LEFT, WIDTH - 20), _Scale(0.0, top, HEIGHT - BOTTOM, TOP)
    parts = [_axis(across, "output tokens per second of one user"), _side(up, "output tokens per second of all users")]
    path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y, _ in best)
    parts.append(f'<polyline points="{path}" fill="none" stroke="{ANSWERING}" stroke-width="1.5"/>')
    for (x, y, name), label in zip(points, differing([name for _, _, name in points]), strict=True):
        colour = ANSWERING if (x, y, name) in best else LINE
        parts.append(f'<circle cx="{across(x):.1f}" cy="{up(y):.1f}" r="4" fill="{colour}"/>')
        is_left = across(x) < WIDTH / 2
        place = (across(x) + 7, up(y) - 5) if is_left else (across(x) - 7, up(y) + 16)
        parts.append(_text(*place, label, "start" if is_left else "end"))
    return _document(title, parts)


def differing(names: Sequence[str]) -> list[str]:
    """Names of a sweep without the parts that all of them have."""
    parts = [name.split("_") for name in names]
    shared = set.intersection(*map(set, parts)) if len(parts) > 1 else set()
    return [" ".join(part for part in each if part not in shared) for each in parts]


def frontier(points: Iterable[Point]) -> list[Point]:
    """The points that no other beats in both coordinates, from left to right."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda point: (-point[0], -point[1])):
        if not kept or point[1] > kept[-1][1]:
            kept.append(point)
    return kept[::-1]


class _Scale:
    """Maps values to coordinates."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low, self.high, self.start, self.end = low, high, start, end

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Round values, at most ten."""
        rough = (self.high - self.low) / 8
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
        return [step * number for number in range(int(self.high / step) + 1)]


def _axis(scale: _Scale, name: str) -> str:
    bottom = HEIGHT - BOTTOM
    marks = [_text(scale(tick), bottom + 18, f"{tick:g}", "middle") for tick in scale.ticks()]
    line = f'<path d="M{LEFT} {bottom}H{WIDTH - 20}" stroke="{LINE}"/>'
    return "".join((line, *marks, _text((LEFT + WIDTH) / 2, HEIGHT - 12, name, "middle")))


def _side(scale: _Scale, name: str) -> str:
    marks = [_text(LEFT - 8, scale(tick) + 4, f"{tick:g}", "end") for tick in scale.ticks()]
    line = f'<path d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}" stroke="{LINE}"/>'
    return "".join((line, *marks, _text(LEFT, TOP - 4, name)))


def _legend(*entries: tuple[str, str]) -> str:
    parts = []
    for number, (colour, name) in enumerate(entries):
        x = WIDTH - 400 + 140 * number
        parts += [_bar(x, x + 12, 6, 12, colour), _text(x + 18, 16, name)]
    return "".join(parts)


def _bar(start: float, end: float, y: float, height: float, colour: str) -> str:
    size = f'width="{max(0.5, end - start):.2f}" height="{max(0.3, height * 0.85):.2f}"'
    return f'<rect x="{start:.2f}" y="{y:.2f}" {size} fill="{colour}"/>'


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _document(title: str, parts: Iterable[str]) -> str:
    box = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    head = f'<svg {box} role="img"><title>{escape(title)}</title>{STYLE}{_text(LEFT, 16, title)}'
    return "\n".join((head, *parts, "</svg>")) + "\n"

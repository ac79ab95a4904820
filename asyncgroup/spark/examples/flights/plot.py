"""Draw the delay by hour of the day as SVG: a line for all flights and one for each of the biggest carriers."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor
from typing import Final, NamedTuple

__all__ = ["HourOfDay", "delay_by_hour_svg"]

WIDTH, HEIGHT = 860, 520
LEFT, RIGHT, TOP, BOTTOM = 62, 168, 84, 128
"""Margins around the lines, for axis labels, carrier names, the title, and the bars."""

BARS: Final = 52
"""Height of the bars below the lines."""

COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""The palette of Okabe and Ito, distinguishable with color blindness. There is one line per color."""

MIN_DEPARTURES: Final = 30
"""The least departures of a carrier in an hour for a point: the mean of fewer would be mostly chance."""

LEGAL_FORM: Final = re.compile(r" (Inc\.|Co\.|Corporation)$")

LABEL_GAP: Final = 17

MAX_GRID_LINES: Final = 10

STYLE: Final = """
    text { font: 12px system-ui, -apple-system, 'Segoe UI', sans-serif; fill: #444 }
    .title { font-size: 19px; font-weight: 600; fill: #111 }
    .grid { stroke: #e4e4e4 }
    .axis { stroke: #888 }
    .bar { fill: #d5dae0 }
    .line { fill: none; stroke-linejoin: round; stroke-linecap: round; stroke-width: 1.6; opacity: .85 }
    .all { stroke: #111; stroke-width: 3.2; opacity: 1 }
    .name { font-weight: 600 }"""


class HourOfDay(NamedTuple):
    """Departed flights of a carrier scheduled in an hour (0 to 23) of the day, and the sum of their delays in minutes."""

    carrier: str
    hour: int
    departed: int
    delay_sum: int


@dataclass(frozen=True)
class _Curve:
    name: str
    style: str
    points: Sequence[tuple[int, float]]


@dataclass(frozen=True)
class _Scale:
    """Converts hours and minutes to coordinates."""

    first: int
    last: int
    low: int
    high: int
    step: int
    """Minutes between two grid lines."""

    def x(self, hour: float) -> float:
        return LEFT + (hour - self.first) / max(1, self.last - self.first) * (WIDTH - LEFT - RIGHT)

    def y(self, minutes: float) -> float:
        return TOP + (self.high - minutes) / (self.high - self.low) * (HEIGHT - TOP - BOTTOM)


def delay_by_hour_svg(rows: Iterable[HourOfDay], names: dict[str, str]) -> str:
    """Return the SVG document. `names` has carrier names by code. Raises ValueError if there are no departures."""
    rows = [row for row in rows if row.departed]
    if not rows:
        raise ValueError("no departures to draw")
    departed: dict[int, int] = defaultdict(int)
    for row in rows:
        departed[row.hour] += row.departed
    curves = [*_carriers(rows, names), _Curve("all carriers", "all", _means(rows, 1))]
    values = [minutes for curve in curves for _, minutes in curve.points]
    scale = _scale(departed, values)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img">',
            f"  <style>{STYLE}\n  </style>",
            f'  <rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
            *_captions(sum(departed.values())),
            *_axes(scale),
            *_bars(scale, departed),
            *(_line(scale, curve) for curve in curves),
            *_labels(scale, curves),
            "</svg>\n",
        ]
    )


# --- data ------------------------------------------------------------------------------------------------------------


def _scale(hours: Collection[int], minutes: Sequence[float]) -> _Scale:
    low, high = min(0, *minutes), max(5, *minutes)
    step = next((step for step in (5, 10, 20, 50, 100) if (high - low) / step <= MAX_GRID_LINES), 200)
    return _Scale(min(hours), max(hours), floor(low / step) * step, ceil(high / step) * step, step)


def _means(rows: Iterable[HourOfDay], least: int) -> list[tuple[int, float]]:
    sums: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for row in rows:
        sums[row.hour][0] += row.departed
        sums[row.hour][1] += row.delay_sum
    return [(hour, total / count) for hour, (count, total) in sorted(sums.items()) if count >= least]


def _carriers(rows: Sequence[HourOfDay], names: dict[str, str]) -> list[_Curve]:
    departed: dict[str, int] = defaultdict(int)
    for row in rows:
        departed[row.carrier] += row.departed
    biggest = sorted(departed, key=lambda carrier: (-departed[carrier], carrier))[: len(COLOURS)]
    curves = [
        _Curve(
            LEGAL_FORM.sub("", names.get(code, code)),
            colour,
            _means((r for r in rows if r.carrier == code), MIN_DEPARTURES),
        )
        for code, colour in zip(biggest, COLOURS, strict=False)
    ]
    return [curve for curve in curves if curve.points]


# --- elements --------------------------------------------------------------------------------------------------------


def _captions(flights: int) -> list[str]:
    return [
        _text(LEFT, 34, "Departure delay by the hour a flight was scheduled", "title"),
        _text(LEFT, 56, f"mean minutes, flights from New York's airports in 2013 ({flights:,} departures)"),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, "scheduled hour, New York time", anchor="middle"),
    ]


def _axes(scale: _Scale) -> list[str]:
    lines = []
    for minutes in range(scale.low, scale.high + 1, scale.step):
        y, kind = scale.y(minutes), "axis" if minutes == 0 else "grid"
        lines.append(f'  <line class="{kind}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        lines.append(_text(LEFT - 10, y + 4, f"{minutes} min", anchor="end"))
    hours = range(scale.first, scale.last + 1)
    return lines + [_text(scale.x(hour), HEIGHT - 32, f"{hour}", anchor="middle") for hour in hours]


def _bars(scale: _Scale, departed: dict[int, int]) -> list[str]:
    base, most = HEIGHT - 50, max(departed.values())
    width = 0.7 * (scale.x(scale.first + 1) - scale.x(scale.first))
    bars = [_text(LEFT - 16, base - 4, "flights", anchor="end")]
    for hour, count in sorted(departed.items()):
        height = count / most * BARS
        bars.append(
            f'  <rect class="bar" x="{scale.x(hour) - width / 2:.1f}" y="{base - height:.1f}" width="{width:.1f}" '
            f'height="{height:.1f}"><title>{hour}:00, {count:,} departures</title></rect>'
        )
    return bars


def _line(scale: _Scale, curve: _Curve) -> str:
    points = " ".join(f"{scale.x(hour):.1f},{scale.y(minutes):.1f}" for hour, minutes in curve.points)
    style = 'class="line all"' if curve.style == "all" else f'class="line" stroke="{curve.style}"'
    return f'  <polyline {style} points="{points}"><title>{escape(curve.name)}</title></polyline>'


def _labels(scale: _Scale, curves: Sequence[_Curve]) -> list[str]:
    """Return the names at the ends of the lines, moved apart where they would overlap."""
    labels, lowest = [], float("-inf")
    for y, curve in sorted(
        ((scale.y(each.points[-1][1]) + 4, each) for each in curves), key=lambda at: at[0]
    ):
        lowest = max(y, lowest + LABEL_GAP)
        colour = "#111" if curve.style == "all" else curve.style
        labels.append(_text(WIDTH - RIGHT + 12, lowest, curve.name, "name", colour=colour))
    return labels


def _text(x: float, y: float, text: str, kind: str = "", *, anchor: str = "", colour: str = "") -> str:
    more = f' class="{kind}"' if kind else ""
    more += f' text-anchor="{anchor}"' if anchor else ""
    more += f' style="fill: {colour}"' if colour else ""
    return f'  <text x="{x:.1f}" y="{y:.1f}"{more}>{escape(text)}</text>'

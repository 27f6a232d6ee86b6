"""Plots as plain SVG, readable on light and on dark ground."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import TypeAlias

from attrs import frozen

Series: TypeAlias = dict[str, list[tuple[float, float]]]
"""Points of each line, by its name."""

WIDTH, HEIGHT = 720, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 40, 72
_COLOURS = ("#2f7ed8", "#d8722e", "#3a9a5b", "#b455a0", "#8a8a2b", "#5f6b7a")
_STYLE = """
.plot text { font: 13px system-ui, sans-serif; fill: currentColor }
.plot .title { font-weight: 600; font-size: 15px }
.plot .grid { stroke: currentColor; stroke-opacity: .2 }
"""
"""A plot is embedded in a page and uses its text color. The line colors have a contrast of at least
3 with the backgrounds of light and dark pages."""
_LEGEND_ROW = 18


@frozen
class _Axis:
    """The positions of values on an axis from `start` to `end`, in pixels."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def at(self, value: float) -> float:
        scale: Callable[[float], float] = math.log10 if self.is_log else float
        low, high = scale(self.low), scale(self.high)
        return self.start + (scale(value) - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return powers of ten, and on a short axis what lies between, if it is logarithmic; else four or so values."""
        if self.is_log:
            factors = (1, 2, 5) if self.high / self.low < 1000 else (1,)
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            values = [factor * 10.0**power for power in powers for factor in factors]
            return [value for value in values if self.low <= value <= self.high]
        step = 10.0 ** math.floor(math.log10(self.high / 4))
        step *= next(factor for factor in (1, 2, 5, 10) if self.high / (step * factor) <= 5)
        return [number * step for number in range(int(self.high / step) + 1)]


def lines(title: str, x_label: str, y_label: str, series: Series) -> str:
    """Return a plot of lines; both axes are logarithmic."""
    points = [point for line in series.values() for point in line]
    xs, ys = zip(*points, strict=True)
    x_axis = _Axis(min(xs) / 1.1, max(xs) * 1.1, _LEFT, WIDTH - _RIGHT, is_log=True)
    y_axis = _Axis(min(ys) / 1.5, max(ys) * 1.5, HEIGHT - _BOTTOM, _TOP, is_log=True)
    parts = [*_y_grid(y_axis, y_label)]
    parts += [
        _text(x_axis.at(x), HEIGHT - _BOTTOM + 18, f"{x:,.0f}", "middle") for x in sorted(set(xs))
    ]
    parts.append(_text((_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - _BOTTOM + 36, x_label, "middle"))
    for colour, line in zip(_COLOURS, series.values(), strict=False):
        path = " ".join(f"{x_axis.at(x):.1f},{y_axis.at(y):.1f}" for x, y in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{x_axis.at(x):.1f}" cy="{y_axis.at(y):.1f}" r="3.5" fill="{colour}"/>'
            for x, y in line
        ]
    return _picture(title, f"{y_label} against {x_label}", parts, list(series))


def bars(
    title: str, y_label: str, categories: Sequence[str], series: dict[str, Sequence[float]]
) -> str:
    """Return a plot of grouped bars from zero, with a bar per category and series."""
    y_axis = _Axis(
        0.0, 1.1 * max(max(values) for values in series.values()), HEIGHT - _BOTTOM, _TOP
    )
    parts = [*_y_grid(y_axis, y_label)]
    group = (WIDTH - _LEFT - _RIGHT) / len(categories)
    width = 0.8 * group / len(series)
    for place, category in enumerate(categories):
        left = _LEFT + place * group + 0.1 * group
        lower = 14 * (place % 2) if len(categories) > 6 else 0  # so that long names do not touch
        parts.append(_text(left + 0.4 * group, HEIGHT - _BOTTOM + 18 + lower, category, "middle"))
        for number, (colour, values) in enumerate(zip(_COLOURS, series.values(), strict=False)):
            top = y_axis.at(values[place])
            parts.append(
                f'<rect x="{left + number * width:.1f}" y="{top:.1f}" width="{width - 1:.1f}" '
                f'height="{HEIGHT - _BOTTOM - top:.1f}" fill="{colour}"/>'
            )
    return _picture(title, f"{y_label} by {', '.join(categories)}", parts, list(series))


def _y_grid(axis: _Axis, label: str) -> list[str]:
    parts = [_text(_LEFT, _TOP - 10, label, "start")]
    for tick in axis.ticks():
        y = axis.at(tick)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        parts.append(_text(_LEFT - 8, y + 4, f"{tick:,g}", "end"))
    return parts


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _picture(title: str, shown: str, parts: list[str], names: list[str]) -> str:
    """Return the complete picture, with enough legend rows for its names."""
    legend, x, y = [], float(_LEFT), HEIGHT - 22
    for colour, name in zip(_COLOURS, names, strict=False):
        width = 34 + 7.2 * len(name)
        if x > _LEFT and x + width > WIDTH:
            x, y = float(_LEFT), y + _LEGEND_ROW
        legend.append(f'<rect x="{x:.1f}" y="{y}" width="12" height="12" fill="{colour}"/>')
        legend.append(_text(x + 17, y + 11, name, "start"))
        x += width
    body = "\n".join(
        [f'<text class="title" x="{_LEFT}" y="16">{escape(title)}</text>', *parts, *legend]
    )
    label = escape(f"{title}: {shown}, for {', '.join(names)}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="plot" viewBox="0 0 {WIDTH} {y + 22}" role="img" '
        f'aria-label="{label}">\n<style>{_STYLE}</style>\n{body}\n</svg>\n'
    )

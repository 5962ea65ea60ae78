# SPDX-License-Identifier: Apache-2.0
"""The panels of tools/report as SVG to stand inside HTML. Colours, fonts and strokes are the page's
CSS; each mark has a shape of its own, and a title that says its numbers."""

import dataclasses
import html
import math
from typing import Dict, List, Optional, Sequence, Tuple

WIDTH = 344
RIGHT = 284  # where the plot of lanes ends, left of their figures
TEXT = 4  # from the middle of a line of text down to its base


def tag(name: str, attributes: Dict, *children: str) -> str:
    """An element. Children are markup; attributes are plain values."""
    parts = [name]
    for key, value in attributes.items():
        text = f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
        parts.append(f'{key.rstrip("_")}="{html.escape(text)}"')
    return f"<{' '.join(parts)}>{''.join(children)}</{name}>"


def text(x: float, y: float, content: str, class_: str = "", anchor: str = "") -> str:
    attributes = {"x": float(x), "y": float(y)}
    if class_:
        attributes["class"] = class_
    if anchor:
        attributes["text-anchor"] = anchor
    return tag("text", attributes, html.escape(content))


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> str:
    ends = {"x1": float(x1), "y1": float(y1), "x2": float(x2), "y2": float(y2)}
    return tag("line", {**ends, "class": class_})


def svg(width: float, height: float, label: str, *children: str, class_: str = "panel") -> str:
    size = {"width": float(width), "height": float(height), "role": "img", "aria-label": label}
    return tag("svg", {"class": class_, "viewBox": f"0 0 {width:g} {height:g}", **size}, *children)


# --------------------------------------------------------------------------------------- marks

# Shapes by their outline about the origin, in a square from -1 to 1.
_POLYGONS = {
    "square": [(-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)],
    "triangle": [(0, -1.05), (1, 0.8), (-1, 0.8)],
    "diamond": [(0, -1.15), (1.15, 0), (0, 1.15), (-1.15, 0)],
    "inverted": [(0, 1.05), (1, -0.8), (-1, -0.8)],
    "plus": [
        (sx * x, sy * y)
        for sx, sy, corner in (
            (1, -1, [(0.35, 1), (0.35, 0.35), (1, 0.35)]),
            (1, 1, [(1, 0.35), (0.35, 0.35), (0.35, 1)]),
            (-1, 1, [(0.35, 1), (0.35, 0.35), (1, 0.35)]),
            (-1, -1, [(1, 0.35), (0.35, 0.35), (0.35, 1)]),
        )
        for x, y in corner
    ],
    "star": [
        (radius * math.sin(step * math.pi / 5), -radius * math.cos(step * math.pi / 5))
        for step, radius in enumerate([1.2, 0.55] * 5)
    ],
    "hexagon": [
        (1.05 * math.cos(step * math.pi / 3), 1.05 * math.sin(step * math.pi / 3))
        for step in range(6)
    ],
}
SHAPES = ["circle", *_POLYGONS]


@dataclasses.dataclass(frozen=True)
class Style:
    colour: str  # a class of the page's CSS that sets --c
    shape: str
    hollow: bool = False


def symbol(style: Style, x: float, y: float, size: float = 5) -> str:
    class_ = f"mark {style.colour}" + (" hollow" if style.hollow else "")
    if style.shape == "circle":
        return tag("circle", {"cx": float(x), "cy": float(y), "r": size, "class": class_})
    points = " ".join(
        f"{x + size * px:.1f},{y + size * py:.1f}" for px, py in _POLYGONS[style.shape]
    )
    return tag("polygon", {"points": points, "class": class_})


def with_title(title: str, *children: str) -> str:
    return tag("g", {}, tag("title", {}, html.escape(title)), *children)


def key_symbol(style: Style, dash: str = "") -> str:
    """The mark as it stands in a legend; with the class of a line, on a stretch of it."""
    stretch = line(0, 8, 26, 8, f"curve {style.colour} {dash}") if dash else ""
    width = 26 if dash else 16
    mark = symbol(style, width / 2, 8, 4 if dash else 5)
    size = {"width": width, "height": 16, "aria-hidden": "true"}
    return tag("svg", {"class": "key", "viewBox": f"0 0 {width} 16", **size}, stretch, mark)


# ---------------------------------------------------------------------------------------- axes


def _short(value: float) -> str:
    return f"{value:g}"


class LogAxis:
    """Covers the values from end to end of the plot, with some air."""

    def __init__(self, values: Sequence[float], begin: float, end: float):
        low, high = math.log(min(values)), math.log(max(values))
        air = max(0.05 * (high - low), 0.08)
        self.low, self.high = low - air, high + air
        self.begin, self.end = begin, end

    def at(self, value: float) -> float:
        share = (math.log(value) - self.low) / (self.high - self.low)
        return self.begin + share * (self.end - self.begin)

    def ticks(self) -> List[Tuple[float, str]]:
        """The finest set that leaves the labels room."""
        low, high = math.exp(self.low), math.exp(self.high)
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        best: List[float] = []
        for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
            values = [
                round(step * 10.0**power, 9) for power in range(first, last + 1) for step in steps
            ]
            values = [value for value in values if low <= value <= high]
            places = [self.at(value) for value in values]
            if all(after - before >= 26 for before, after in zip(places, places[1:])):
                best = values
        return [(value, _short(value)) for value in best]


class LinearAxis:
    """From 0 to at least the largest value."""

    def __init__(self, values: Sequence[float], begin: float, end: float, max_ticks: int = 6):
        top = max(values) * 1.04
        power = 10.0 ** math.floor(math.log10(top / max_ticks))
        self.step = next(s * power for s in (1, 2, 2.5, 5, 10) if top / (s * power) <= max_ticks)
        self.top = top
        self.begin, self.end = begin, end

    def at(self, value: float) -> float:
        return self.begin + value / self.top * (self.end - self.begin)

    def ticks(self) -> List[Tuple[float, str]]:
        count = math.floor(self.top / self.step + 1e-9)
        return [(i * self.step, _short(round(i * self.step, 9))) for i in range(count + 1)]


# -------------------------------------------------------------------------------- lanes of dots


@dataclasses.dataclass(frozen=True)
class Dot:
    value: float
    style: Style
    title: str
    lower: Optional[float] = None  # the ends of the whisker, if there is one
    upper: Optional[float] = None
    figure: str = ""  # stands at the end of the dot's lane


@dataclasses.dataclass(frozen=True)
class Row:
    label: str
    dots: List[Dot]


def _spread_over_lanes(dots: List[Dot], axis) -> List[Tuple[int, Dot]]:
    """Dots that would touch go to the next lane."""
    ends: List[float] = []
    placed = []
    for dot in sorted(dots, key=lambda dot: dot.value):
        x = axis.at(dot.value)
        lane = next((lane for lane, end in enumerate(ends) if x - end >= 13), len(ends))
        ends[lane : lane + 1] = [x]
        placed.append((lane, dot))
    return placed


def lanes(
    title: str,
    rows: List[Row],
    axis,
    *,
    rules: List[Tuple[float, str]],
    heading: str,
    axis_title: str,
    own_lanes: bool,
) -> str:
    """Dots by row over a common axis. Each dot has a lane of its own, or those of a row share."""
    lane_height, gap, top = 14, 9, 42
    marks, y = [], float(top)
    for row in rows:
        placed = list(enumerate(row.dots)) if own_lanes else _spread_over_lanes(row.dots, axis)
        count = 1 + max((lane for lane, _ in placed), default=0)
        marks.append(line(0, y, WIDTH, y, "separator"))
        middle = y + gap / 2 + lane_height * count / 2
        marks.append(text(axis.begin - 16, middle + TEXT, row.label, "label", "end"))
        figures = [dot.figure for _, dot in placed if dot.figure]
        for lane, dot in placed:
            x, lane_y = axis.at(dot.value), y + gap / 2 + lane_height * (lane + 0.5)
            parts = []
            if dot.lower is not None and dot.upper is not None:
                ends = axis.at(dot.lower), axis.at(dot.upper)
                parts.append(line(ends[0], lane_y, ends[1], lane_y, f"whisker {dot.style.colour}"))
            parts.append(symbol(dot.style, x, lane_y, 4.5))
            if dot.figure:
                at = lane_y if len(figures) > 1 else middle
                parts.append(text(WIDTH - 2, at + TEXT, dot.figure, "figure", "end"))
            marks.append(with_title(dot.title, *parts))
        y += lane_height * count + gap
    bottom = y

    frame = [text(0, 13, title, "title"), text(WIDTH - 2, 13, heading, "muted", "end")]
    for value, label in axis.ticks():
        x = axis.at(value)
        frame.append(line(x, top, x, bottom, "grid"))
        frame.append(text(x, bottom + 16, label, "tick", "middle"))
    for value, label in rules:
        x = axis.at(value)
        frame.append(line(x, top - 4, x, bottom, "rule"))
        frame.append(text(x, top - 9, label, "muted", "middle"))
    frame.append(line(0, bottom, WIDTH, bottom, "separator"))
    frame.append(text((axis.begin + axis.end) / 2, bottom + 33, axis_title, "muted", "middle"))
    return svg(WIDTH, bottom + 40, f"{title}: {axis_title}", *frame, *marks)


def lanes_axis(kind, values: Sequence[float], longest_label: int):
    """Begins right of the labels, of so many characters."""
    return kind(values, 16 + 7.4 * longest_label, RIGHT)


# -------------------------------------------------------------------------------------- curves


@dataclasses.dataclass(frozen=True)
class Point:
    x: float
    y: float
    title: str
    lower: Optional[float] = None
    upper: Optional[float] = None


@dataclasses.dataclass(frozen=True)
class Curve:
    style: Style
    dash: str  # a class of the page's CSS
    points: List[Point]


def curves(
    title: str, lines: List[Curve], xs: Sequence[float], ys: Sequence[float], axis_title: str
) -> str:
    """Lines over a logarithmic x; xs and ys are all values that the axes have to cover."""
    left, right, top, bottom = 36, WIDTH - 10, 30, 222
    x_axis = LogAxis(xs, left, right)
    y_axis = LinearAxis(ys, bottom, top)
    frame = [text(0, 13, title, "title")]
    for value, label in y_axis.ticks():
        y = y_axis.at(value)
        frame.append(line(left, y, right, y, "grid"))
        frame.append(text(left - 6, y + TEXT, label, "tick", "end"))
    last = -math.inf
    for value in sorted({4**power for power in range(1, 16)} | {1}):
        if min(xs) <= value <= max(xs) and x_axis.at(value) - last >= 40:
            last = x_axis.at(value)
            frame.append(line(last, bottom, last, bottom + 4, "rule"))
            frame.append(text(last, bottom + 18, str(value), "tick", "middle"))
    frame.append(line(left, bottom, right, bottom, "rule"))
    frame.append(text((left + right) / 2, bottom + 36, axis_title, "muted", "middle"))

    bands, paths, marks = [], [], []
    for curve in lines:
        points = sorted(curve.points, key=lambda point: point.x)
        places = [(x_axis.at(point.x), y_axis.at(point.y)) for point in points]
        if all(point.lower is not None and point.upper is not None for point in points):
            outline = [(p.x, p.upper) for p in points] + [(p.x, p.lower) for p in reversed(points)]
            corners = " ".join(f"{x_axis.at(x):.1f},{y_axis.at(y):.1f}" for x, y in outline)
            bands.append(tag("polygon", {"points": corners, "class": f"band {curve.style.colour}"}))
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        class_ = f"curve {curve.style.colour} {curve.dash}"
        paths.append(tag("polyline", {"points": path, "class": class_}))
        for point, (x, y) in zip(points, places):
            # A wider ring that cannot be seen makes the mark easier to point at.
            ring = tag("circle", {"cx": x, "cy": y, "r": 7, "class": "ring"})
            marks.append(with_title(point.title, ring, symbol(curve.style, x, y, 2.8)))
    return svg(WIDTH, bottom + 44, f"{title} over {axis_title}", *frame, *bands, *paths, *marks)

"""Colours for light and dark: lines, classes, and two ramps; told apart by colour-blind readers (a test simulates it).

Every colour is a CSS variable or class, so that one drawing serves both schemes and print.
"""

from __future__ import annotations

from typing import Final, Literal

Family = Literal["q", "d"]
"""``q``: sequential, from the page's colour to ink. ``d``: diverging around the page's colour."""

LEVELS: Final[dict[str, int]] = {"q": 24, "d": 25}
SERIES: Final = 8
CLASSES: Final = 10

_LIGHT: Final = {
    "paper": "#fbfaf7",
    "card": "#ffffff",
    "ink": "#1c2330",
    "soft": "#5b6472",
    "hair": "#e3dfd6",
    "faint": "#f3f0e9",
    "accent": "#1b5e8c",
    "warn": "#b3261e",
    "bar": "#8fb8cc",
    "bar-warn": "#e2a39c",
}
_DARK: Final = {
    "paper": "#13161b",
    "card": "#1a1e25",
    "ink": "#e7e9ed",
    "soft": "#9ca6b4",
    "hair": "#323945",
    "faint": "#222730",
    "accent": "#7cc0ee",
    "warn": "#ff8a7a",
    "bar": "#35688a",
    "bar-warn": "#8a423c",
}
# The first is the baseline's grey; the others differ in lightness as well as in hue.
_SERIES_LIGHT: Final = ("#6b7684", "#0a5fc0", "#d96a0a", "#159a6c", "#8c1d5e", "#6e4a08", "#2f96e8", "#33186f")
_SERIES_DARK: Final = ("#8b929c", "#2f7de8", "#f08a55", "#4fe0b0", "#ff7cc4", "#f2d255", "#a6dcff", "#c0a6ff")
# The last is "all other classes".
_CLASSES_LIGHT: Final = (
    "#332f86", "#8fcbea", "#117a3d", "#dfcd7a", "#c96575", "#45a89a", "#8a2457", "#b9b04a", "#a04b9f", "#e2a37c",
    "#c9ccd1",
)  # fmt: skip
_CLASSES_DARK: Final = (
    "#6a66d6", "#a4daf5", "#2b9c5a", "#e9da8c", "#dd7f8e", "#54bdae", "#b0447d", "#c9c05c", "#bd6cbc", "#efb58f",
    "#5a626e",
)  # fmt: skip
_RAMPS_LIGHT: Final = {
    "q": ("#f1efe8", "#cfe3e1", "#95c5cb", "#4f9cb6", "#25709c", "#1a4678", "#131f4d"),
    "d": ("#7a3200", "#c4681d", "#eebb87", "#f1efe8", "#93bfdf", "#2c77b4", "#0c3b70"),
}
_RAMPS_DARK: Final = {
    "q": ("#20262e", "#1f3e50", "#1f5f77", "#2b8696", "#52a49b", "#8cc6a2", "#cfe9b4"),
    "d": ("#ffc58a", "#d98236", "#7c4a22", "#262b33", "#255a86", "#4d9fdd", "#b5deff"),
}


def ramp(family: Family, scheme: Literal["light", "dark"]) -> tuple[str, ...]:
    """The ``LEVELS[family]`` colours of a ramp, from its stops by straight lines in sRGB."""
    stops = (_RAMPS_LIGHT if scheme == "light" else _RAMPS_DARK)[family]
    count = LEVELS[family]
    return tuple(_between(stops, i / (count - 1)) for i in range(count))


def series_colours(scheme: Literal["light", "dark"]) -> tuple[str, ...]:
    """The colours of the lines; the first is the baseline's."""
    return _SERIES_LIGHT if scheme == "light" else _SERIES_DARK


def class_colours(scheme: Literal["light", "dark"]) -> tuple[str, ...]:
    """The colours of ``CLASSES`` classes and, last, of the rest."""
    return _CLASSES_LIGHT if scheme == "light" else _CLASSES_DARK


def luminance(colour: str) -> float:
    """Relative luminance of ``#rrggbb`` in [0, 1] (WCAG 2.2)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in _channels(colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours, 1 to 21 (WCAG 2.2)."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def surface(name: str, scheme: Literal["light", "dark"]) -> str:
    """A colour of the page itself: paper, card, ink, soft, hair, faint, accent, warn, bar, bar-warn."""
    return (_LIGHT if scheme == "light" else _DARK)[name]


def theme_css() -> str:
    """The variables and colour classes under ``.pluribus``: light, and dark on a screen that asks for it."""
    return f"{_scheme_css('light')}\n@media screen and (prefers-color-scheme:dark){{\n{_scheme_css('dark')}\n}}\n"


def _scheme_css(scheme: Literal["light", "dark"]) -> str:
    surfaces = _LIGHT if scheme == "light" else _DARK
    rules = [
        ".pluribus{color-scheme:" + scheme + ";" + "".join(f"--{k}:{v};" for k, v in surfaces.items()) + "}",
        "".join(f".pluribus .s{i}{{--c:{colour}}}" for i, colour in enumerate(series_colours(scheme))),
        "".join(
            f".pluribus .c{i}{{--c:{colour};--k:{_ink_on(colour)}}}" for i, colour in enumerate(class_colours(scheme))
        ),
    ]
    rules += [
        "".join(f".pluribus .{family}{i}{{--c:{colour}}}" for i, colour in enumerate(ramp(family, scheme)))
        for family in ("q", "d")  # type: Family
    ]
    return "\n".join(rules)


def _ink_on(colour: str) -> str:
    return max(("#14181f", "#ffffff"), key=lambda ink: contrast(ink, colour))


def _channels(colour: str) -> list[float]:
    return [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]


def _between(stops: tuple[str, ...], place: float) -> str:
    where = place * (len(stops) - 1)
    left = min(int(where), len(stops) - 2)
    part = where - left
    mixed = (a + (b - a) * part for a, b in zip(_channels(stops[left]), _channels(stops[left + 1]), strict=True))
    return "#" + "".join(f"{round(255 * c):02x}" for c in mixed)

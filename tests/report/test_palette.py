"""Colours are told apart, also by colour-blind readers, and text stands out, in light and in dark."""

from __future__ import annotations

from itertools import combinations
from typing import Literal

import numpy as np
import pytest

from pluribus.report.palette import (
    LEVELS,
    class_colours,
    contrast,
    luminance,
    ramp,
    series_colours,
    surface,
    theme_css,
)

Scheme = Literal["light", "dark"]
# Machado, Oliveira and Fernandes 2009, severity 1.0, for linear RGB (deutan compared with a published shader).
SIGHT = {
    "full": np.eye(3),
    "protan": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deutan": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def lab(colour: str, sight: str) -> np.ndarray:
    """CIE L*a*b* (D65) of what a reader with ``sight`` sees."""
    raw = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(raw <= 0.04045, raw / 12.92, ((raw + 0.055) / 1.055) ** 2.4)
    seen = np.clip(SIGHT[sight] @ linear, 0, 1)
    xyz = (TO_XYZ @ seen) / np.array([0.9505, 1.0, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def nearest(colours: tuple[str, ...], sight: str) -> float:
    return min(float(np.linalg.norm(lab(a, sight) - lab(b, sight))) for a, b in combinations(colours, 2))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("sight", list(SIGHT))
def test_lines_and_classes_differ(scheme: Scheme, sight: str) -> None:
    assert nearest(series_colours(scheme), sight) > 12
    assert nearest(class_colours(scheme)[:-1], sight) > 12
    assert nearest((surface("accent", scheme), surface("warn", scheme)), sight) > 20


def test_the_measure_tells_red_and_green_apart_only_in_full_sight() -> None:
    pair = ("#c05050", "#7f7f30")
    assert nearest(pair, "full") > 2 * nearest(pair, "deutan")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_lines_stand_out(scheme: Scheme) -> None:
    for ground in ("paper", "card"):
        for name in ("ink", "soft", "accent", "warn"):
            assert contrast(surface(name, scheme), surface(ground, scheme)) >= 4.5, (name, ground)
        for colour in series_colours(scheme):
            assert contrast(colour, surface(ground, scheme)) >= 3, colour


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_ramps_are_ordered_by_lightness(scheme: Scheme) -> None:
    toward_ink = -1 if scheme == "light" else 1
    sequential = [luminance(colour) for colour in ramp("q", scheme)]
    assert len(sequential) == LEVELS["q"]
    assert (toward_ink * np.diff(sequential) > 0).all()
    diverging = [luminance(colour) for colour in ramp("d", scheme)]
    middle = LEVELS["d"] // 2
    assert (toward_ink * np.diff(diverging[middle:]) > 0).all()
    assert (toward_ink * np.diff(diverging[: middle + 1]) < 0).all()


def test_the_style_has_every_class_in_both_schemes() -> None:
    css = theme_css()
    for name in [f"q{LEVELS['q'] - 1}", f"d{LEVELS['d'] - 1}", "s7", "c10"]:
        assert css.count(f".{name}{{") == 2
    assert css.count("{") == css.count("}")

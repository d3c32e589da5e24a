"""Names and numbers as shown."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET

import pytest

from pluribus.report.text import (
    clean,
    coordinate,
    escape,
    fixed,
    number,
    percent,
    shorten,
    signed,
    signed_percent,
    text_width,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (-0.0, "0"),
        (0.05, "0.05"),
        (1 / 3, "0.3333"),
        (-12.5, "−12.5"),
        (123456.7, "123457"),
        (9999.7, "10000"),
        (1e6, "1e6"),
        (1.234567e12, "1.235e12"),
        (1e-7, "1e-7"),
        (-2.5e-9, "−2.5e-9"),
        (5e-324, "4.941e-324"),
        (1.7e308, "1.7e308"),
        (math.nan, "–"),
        (math.inf, "∞"),
        (-math.inf, "−∞"),
    ],
)
def test_number(value: float, text: str) -> None:
    assert number(value) == text


def test_shares() -> None:
    assert percent(0.9344) == "93.4"
    assert percent(-0.0001) == "0.0"
    assert percent(math.nan) == "–"
    assert signed_percent(0.4123) == "+41.2"
    assert signed_percent(-0.003) == "−0.3"
    assert signed_percent(0.0001) == "±0.0"
    assert signed_percent(-0.0001) == "±0.0"
    assert signed_percent(math.nan) == "–"
    assert signed_percent(math.inf) == "+∞"
    assert signed_percent(-math.inf) == "−∞"
    assert signed(2.0) == "+2"
    assert signed(-2.0) == "−2"
    assert fixed(0.039, 4) == "0.0390"
    assert fixed(-1e-9, 4) == "0.0000"


def test_coordinates_are_short_and_have_no_minus_zero() -> None:
    assert [coordinate(v) for v in (0, -0.001, 1.5, 2.004, -3.456, 100)] == ["0", "0", "1.5", "2", "-3.46", "100"]


def test_what_cannot_be_shown_is_replaced() -> None:
    bad = "a\x00b\x1bc\u202ed\u2066e\udc80f\ufffeg\x85h"
    assert clean(bad) == "a�b�c�d�e�f�g�h"
    assert clean("Zoë 東京 عربي 👩‍🔬 e\u0301\t\n") == "Zoë 東京 عربي 👩‍🔬 e\u0301\t\n"


def test_escaped_text_survives_xml() -> None:
    bad = "<script>\"'&amp;\x00</script>"
    assert ET.fromstring(f'<a b="{escape(bad)}">{escape(bad)}</a>').text == bad.replace("\x00", "�")


def test_shortening_fits_and_counts_wide_characters_double() -> None:
    assert shorten("short", 100) == "short"
    cut = shorten("a very long name of a client", 60)
    assert cut.endswith("…")
    assert text_width(cut) <= 60
    assert text_width("東京") > 1.7 * text_width("ab")
    assert shorten("東京" * 20, 60).endswith("…")
    assert shorten("anything", 0) == "…"

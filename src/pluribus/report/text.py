"""Words and numbers as the page shows them: cleaned, escaped, of fixed precision, the same bytes every time."""

from __future__ import annotations

import math
import re
import unicodedata

# Not allowed in XML, or able to reorder the text around them (bidirectional overrides), or lone surrogates.
_UNSHOWABLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]"
)
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"})
MISSING = "–"
MINUS = "−"


def clean(text: object) -> str:
    """``str(text)`` with every character that a page cannot or must not show replaced by U+FFFD."""
    return _UNSHOWABLE.sub("\ufffd", str(text))


def escape(text: object) -> str:
    """Cleaned text for an element or a quoted attribute of HTML or XML."""
    return clean(text).translate(_ESCAPES)


def number(value: float, digits: int = 4) -> str:
    """``value`` with ``digits`` significant digits; "–" for NaN, "∞" for infinity.

    Plain between 1e-4 and 1e6, with an exponent outside: 0.05, 12.5, 1.23e12.
    """
    if math.isnan(value):
        return MISSING
    if math.isinf(value):
        return "∞" if value > 0 else MINUS + "∞"
    if value == 0:
        return "0"
    size = abs(value)
    text = f"{size:.{digits}g}" if 1e-4 <= size < 1e6 else f"{size:.{digits - 1}e}"
    if "e" in text and 1 <= size < 1e6:  # four digits of 123456 would need an exponent: show it whole
        text = f"{size:.0f}"
    if "e" in text:
        digits_, _, power = text.partition("e")
        text = f"{digits_.rstrip('0').rstrip('.') if '.' in digits_ else digits_}e{int(power)}"
    return MINUS + text if value < 0 else text


def fixed(value: float, digits: int) -> str:
    """``value`` with exactly ``digits`` decimals, for columns that are compared; never "−0.0"."""
    if not math.isfinite(value):
        return number(value)
    text = f"{value:.{digits}f}"
    if not text.strip("-0."):
        return text.lstrip("-")
    return text.replace("-", MINUS, 1)


def percent(value: float, digits: int = 1) -> str:
    """A share as per cent with ``digits`` decimals and no sign of it: 0.934 is "93.4"."""
    return fixed(100 * value, digits)


def signed_percent(value: float, digits: int = 1) -> str:
    """A difference of two shares in points, always with its sign: "+41.2", "−0.3", "±0.0"."""
    text = fixed(100 * value, digits)
    if text[0] in MISSING + MINUS:
        return text
    return ("+" if any(c in "123456789∞" for c in text) else "±") + text


def signed(value: float) -> str:
    """A difference with its sign, four significant digits."""
    return ("+" if value > 0 else "") + number(value)


def coordinate(value: float) -> str:
    """A length or place in a drawing: at most two decimals, no trailing zeros, no minus zero."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def text_width(text: str, size: float = 12) -> float:
    """About how wide ``text`` is in a sans-serif of ``size`` pixels; wide East Asian characters count double."""
    total = 0.0
    for character in text:
        if unicodedata.combining(character):
            continue
        wide = unicodedata.east_asian_width(character) in "WF"
        total += 1.0 if wide else 0.3 if character in "ijl.,:;'|!()[] " else 0.56
    return total * size


def shorten(text: object, width: float, size: float = 12) -> str:
    """Cleaned ``text`` cut with "…" so that it fits ``width`` pixels."""
    text = clean(text)
    if text_width(text, size) <= width:
        return text
    while text and text_width(text + "…", size) > width:
        text = text[:-1]
    return text.rstrip() + "…"


def counted(n: int, one: str, many: str | None = None) -> str:
    """``1 client``, ``20 clients``."""
    return f"{n} {one if n == 1 else many or one + 's'}"

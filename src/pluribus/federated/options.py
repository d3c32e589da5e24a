"""Readers of settings: a value from TOML or a text from a command line, of the right kind or an error that says it."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pluribus.federated.errors import SettingError

Reader = Callable[[Any, str], Any]
"""``read(value, name) -> value``; ``name`` is how messages call the setting."""


def whole(least: int, most: int = 2**63 - 1) -> Callable[[Any, str], int]:
    """A whole number in a range."""
    expected = f"a whole number >= {least}" if most == 2**63 - 1 else f"a whole number from {least} to {most}"

    def read(value: Any, name: str) -> int:
        if isinstance(value, str):
            value = int(value) if re.fullmatch(r"\s*[+-]?\d{1,18}\s*", value) else value
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise SettingError(f"{name} is {value!r}; expected {expected}")
        return value

    return read


def number(good: Callable[[float], bool], expected: str) -> Callable[[Any, str], float]:
    """A finite number for which ``good`` holds."""

    def read(value: Any, name: str) -> float:
        given = value
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                value = None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise SettingError(f"{name} is {given!r}; expected {expected}")
        if not good(value):
            raise SettingError(f"{name} is {given!r}; expected {expected}")
        return float(value)

    return read


def text(value: Any, name: str) -> str:
    """Text, not empty."""
    if not isinstance(value, str) or not value.strip():
        raise SettingError(f"{name} is {value!r}; expected text in quotes")
    return value.strip()


def switch(value: Any, name: str) -> bool | None:
    """True or false, or nothing said."""
    if value is not None and not isinstance(value, bool):
        raise SettingError(f"{name} is {value!r}; expected true or false")
    return value


def names(value: Any, name: str) -> tuple[str, ...]:
    """A list of texts, or one text with commas."""
    if isinstance(value, str):
        value = split_list(value)
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
        raise SettingError(f"{name} is {value!r}; expected names such as 'fedavg,median'")
    items = tuple(item.strip() for item in value if item.strip())
    if not items:
        raise SettingError(f"{name} is empty; expected names such as 'fedavg,median'")
    return items


def split_list(line: str) -> list[str]:
    """Parts between commas; commas inside of brackets stay: ``"a,b(x=1,y=2)"`` is ``["a", "b(x=1,y=2)"]``."""
    parts, depth = [""], 0
    for character in line:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def did_you_mean(key: str, known: Iterable[str]) -> str:
    """A question after a word that is none of the known ones, where one is near."""
    near = difflib.get_close_matches(key.strip().lower(), known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""


def unknown(where: str, key: str, known: Sequence[str]) -> str:
    """A message about a name that is none, with the nearest that is one."""
    hint = did_you_mean(key, known) or f"; known are {', '.join(sorted(known))}"
    return f"{where} is no setting{hint}"


def brief(value: float) -> str:
    """The shortest text that reads back as the same number."""
    short = f"{value:g}"
    return short if float(short) == value else repr(float(value))

"""Settings in TOML: read with messages that name the file and the key, written so that they read back the same."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pluribus
from pluribus.core.errors import FileError
from pluribus.federated.config import ALPHA, SETTINGS, Config, Layer
from pluribus.federated.errors import SettingError
from pluribus.federated.options import unknown

SECTION = "federate"
BESIDE = ("out", "workers", "engine")  # not settings of the experiment, but a file may hold them


def read(path: Path) -> tuple[Layer, dict[str, Any]]:
    """A file's settings, and its ``out``, ``workers`` and ``engine`` if it holds them.

    The keys stand at the top, or all in one section ``[federate]``. Relative paths start at the file's folder.

    Raises
    ------
    FileError
        There is no such file, or it is no TOML.
    SettingError
        Keys that are none.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise FileError(f"{path}: no such file; expected settings in TOML") from None
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path} cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise FileError(f"{path} is no TOML: {error}") from None
    if isinstance(values.get(SECTION), dict):
        others = [key for key in values if key != SECTION]
        if others:
            raise SettingError(f"{path}: {others[0]} stands outside of [{SECTION}]; put all keys in one place")
        values = values[SECTION]
    known = [*SETTINGS, ALPHA, *BESIDE]
    for key, value in values.items():
        if isinstance(value, dict):
            raise SettingError(f"{path}: [{key}] is no section; the one there is is [{SECTION}]")
        if key.replace("-", "_") not in known:
            raise SettingError(unknown(f"{path}: {key}", key, known))
    beside = {key: values.pop(key) for key in BESIDE if key in values}
    return Layer(values, lambda key: f"{path}: {key}", path.parent), beside


def folder_of(beside: Mapping[str, Any], path: Path | None) -> Path | None:
    """The folder of results that a file names, from the file's own; None if it names none."""
    out = beside.get("out")
    if out is None or path is None:
        return None
    if not isinstance(out, str) or not out:
        raise SettingError(f"{path}: out is {out!r}; expected the name of a folder in quotes")
    return path.parent / Path(out).expanduser()


def to_toml(settings: Config) -> str:
    """The settings as a file that `read` reads back as the same settings."""
    lines = [f"{name} = {_toml(value)}" for name, value in settings.plain().items()]
    head = f"# An experiment of pluribus {pluribus.__version__}. To run it again: pluribus federate THIS_FILE --out DIR"
    return "\n".join([head, *lines]) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_toml(item) for item in value)}]"
    if isinstance(value, Mapping):
        raise TypeError("settings are flat")
    # A JSON string is a TOML string, but for DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")

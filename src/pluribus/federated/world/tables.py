"""Small CSV tables of numbers that describe a world: speeds of clients, who was there when."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pluribus.core.errors import FileError
from pluribus.federated.errors import SettingError


@dataclass(frozen=True, eq=False)
class Table:
    """Numbers below a line of names.

    Attributes
    ----------
    path
        Where it was read.
    names
        Of the columns.
    values
        Rows x columns, float64; ``inf`` is a number here, NaN is not.
    lines
        The line of the file that each row stands in, for messages.
    digest
        Of the bytes of the file: whether it still holds what it held.
    """

    path: Path
    names: tuple[str, ...]
    values: NDArray[np.float64]
    lines: tuple[int, ...]
    digest: str

    def column(self, name: str) -> NDArray[np.float64]:
        """The numbers of one column."""
        column: NDArray[np.float64] = self.values[:, self.names.index(name)]
        return column

    def refuse(self, row: int, column: str, expected: str) -> SettingError:
        """An error about one number, to be raised."""
        value = self.values[row, self.names.index(column)]
        return SettingError(f"{self.path}: line {self.lines[row]}, {column!r} is {value:g}; expected {expected}")


def read(text: str, folder: Path | None = None) -> Table:
    """The table in a file; a relative path starts at ``folder``, else where the program runs.

    Raises
    ------
    FileError
        There is no such file, or it is no text.
    SettingError
        A line of another length, or a cell that is no number; the message names the line and the column.
    """
    path = (folder or Path()) / Path(text).expanduser()
    try:
        data = path.read_bytes()
        rows = list(_rows(data.decode("utf-8-sig")))
    except FileNotFoundError:
        raise FileError(f"{path}: no such file; expected a CSV file with a line of names") from None
    except (OSError, ValueError, csv.Error) as error:  # a path with a zero byte is a ValueError
        raise FileError(f"{str(path)!r} cannot be read as CSV: {error}") from None
    if len(rows) < 2:
        raise SettingError(f"{path}: expected a line of names and a line of numbers; it has {len(rows)} lines")
    names = tuple(rows[0][1])
    if len(set(names)) < len(names):
        raise SettingError(f"{path}: two columns have the same name; the columns are {', '.join(names)}")
    values = np.empty((len(rows) - 1, len(names)))
    for out, (line, cells) in zip(values, rows[1:], strict=True):
        if len(cells) != len(names):
            raise SettingError(f"{path}: line {line} has {len(cells)} cells; the first line has {len(names)}")
        out[:] = [_number(path, line, name, cell) for name, cell in zip(names, cells, strict=True)]
    lines = tuple(line for line, _ in rows[1:])
    return Table(path, names, values, lines, hashlib.sha256(data).hexdigest())


def clients_of(names: Sequence[str], path: Path) -> NDArray[np.int64]:
    """Columns that are called by clients, ``0`` or ``client 0``, as positions."""
    found = []
    for name in names:
        digits = name.lower().removeprefix("client").strip(" _")
        if not digits.isdecimal() or len(digits) > 18:  # int64 holds 18 digits whatever they are
            raise SettingError(f"{path}: column {name!r} is no client; expected a number such as 0, 1, 2")
        found.append(int(digits))
    return np.array(found, dtype=np.int64)


def _rows(text: str) -> list[tuple[int, list[str]]]:
    reader = csv.reader(text.splitlines(), skipinitialspace=True)
    return [(reader.line_num, [cell.strip() for cell in row]) for row in reader if any(cell.strip() for cell in row)]


def _number(path: Path, line: int, name: str, cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = np.nan
    if np.isnan(value):
        raise SettingError(f"{path}: line {line}, {name!r} holds {cell!r}; expected a number")
    return value

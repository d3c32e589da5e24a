"""The user's own data: ``.npz`` and CSV files of samples with labels."""

from __future__ import annotations

import csv
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pluribus.core.errors import FileError
from pluribus.federated.data.dataset import Dataset
from pluribus.federated.errors import DataError

X_KEYS = ("x", "X", "data")
Y_KEYS = ("y", "Y", "target", "label", "labels")
LABEL_COLUMNS = ("label", "y", "target")
MISSING = ("", "nan", "na", "n/a", "null", "none", "?")


def load(path: str | Path) -> Dataset:
    """A data set from a ``.npz`` or ``.csv`` file, flattened to ``(n, features)`` and not rescaled.

    ``.npz``: arrays ``x`` and ``y`` (or ``X``/``y``, ``data``/``target``); never unpickled. CSV: commas,
    with or without a header; the label is the column called ``label``, ``y`` or ``target`` (in any case),
    else the last; all other columns are numbers. Labels may be whole numbers or text; classes are numbered
    in their sorted order, and ``class_names`` keeps what they were called.

    Raises ``FileError`` for a file that is not there or not of its kind, ``DataError`` for what is in it;
    both name the row and column where there is one.
    """
    file = Path(path)
    if not file.is_file():
        raise FileError(f"{file}: no such file; expected a .npz or .csv file with samples and labels")
    if file.suffix.lower() == ".npz":
        (x, y), told = _read_npz(file), ""
    elif file.suffix.lower() == ".csv":
        x, y, told = _read_csv(file)
    else:
        raise FileError(f"{file}: the name ends in {file.suffix or 'nothing'!r}; expected .npz or .csv")
    if len(x) != len(y):
        raise DataError(f"{file}: {len(x)} samples but {len(y)} labels; expected one label a sample")
    labels, names = _numbered(y, file, told)
    if x.ndim < 2:
        raise DataError(f"{file}: samples have shape {x.shape}; expected (n, features)")
    return Dataset(x.reshape(len(x), -1), labels, len(names), file.name, names)


def _read_npz(file: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    if not zipfile.is_zipfile(file):
        raise FileError(f"{file}: not a readable .npz archive; write one with np.savez(path, x=x, y=y)")
    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            x = archive[_key(archive.files, X_KEYS, "samples", file)]
            y = archive[_key(archive.files, Y_KEYS, "labels", file)]
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise FileError(f"{file}: not a readable .npz archive ({error})") from error
    except DataError:
        raise
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise FileError(f"{file}: holds an array that numpy cannot read ({error})") from error
        raise DataError(
            f"{file}: an array holds Python objects, which are never unpickled; save numbers or text: "
            "np.savez(path, x=x.astype(float), y=y.astype(str))"
        ) from error
    if not (isinstance(x, np.ndarray) and isinstance(y, np.ndarray)):
        raise FileError(f"{file}: holds an entry that is no numpy array; write it with np.savez(path, x=x, y=y)")
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise DataError(f"{file}: labels have shape {y.shape}; expected (n,), one class a sample (not one-hot)")
    return x, y


def _key(there: Sequence[str], wanted: Sequence[str], what: str, file: Path) -> str:
    for key in wanted:
        if key in there:
            return key
    raise DataError(f"{file}: no {what}; looked for {', '.join(wanted)}, found {', '.join(there) or 'nothing'}")


def _read_csv(file: Path) -> tuple[NDArray[Any], NDArray[Any], str]:
    """Samples, labels, and which column was taken as the label where none is called so."""
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream, skipinitialspace=True)
            # Line numbers as an editor shows them, for the messages.
            rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise FileError(f"{file}: not a CSV text in UTF-8 ({error})") from error
    if not rows:
        raise DataError(f"{file}: the file is empty")
    first = [cell.strip() for cell in rows[0][1]]
    if len(first) < 2:
        hint = next((f"; it seems to use {mark!r}" for mark in (";", "\t", "|") if mark in first[0]), "")
        raise DataError(f"{file}: one column only; expected features and a label, separated by commas{hint}")
    header = first if _is_header(first) else None
    label = _label_column(header, len(first), file)
    body = rows[1:] if header else rows
    if not body:
        raise DataError(f"{file}: a header and no rows")
    columns = header or [f"column {i + 1}" for i in range(len(first))]
    features = np.empty((len(body), len(first) - 1))
    labels = []
    for out, (line, row) in zip(features, body, strict=True):
        if len(row) != len(first):
            raise DataError(f"{file}: line {line} has {len(row)} cells; the first line has {len(first)}")
        labels.append(row[label].strip())
        if labels[-1].lower() in MISSING:
            raise DataError(f"{file}: line {line}, {columns[label]!r}: the label is missing")
        cells = row[:label] + row[label + 1 :]
        try:
            out[:] = cells
        except ValueError:
            raise _bad_cell(file, line, row, columns, label) from None
        if not np.isfinite(out).all():
            raise _bad_cell(file, line, row, columns, label)
    return features, np.array(labels), _taken(columns, label)


def _is_header(first: list[str]) -> bool:
    """Whether the first line names columns: it names the label, or a feature's cell in it is text."""
    if any(cell.lower() in LABEL_COLUMNS for cell in first):
        return True
    return any(not _is_number(cell) and cell.lower() not in MISSING for cell in first[:-1])


def _label_column(header: list[str] | None, width: int, file: Path) -> int:
    found = [i for i, cell in enumerate(header or []) if cell.lower() in LABEL_COLUMNS]
    if len(found) > 1:
        named = ", ".join((header or [])[i] for i in found)
        raise DataError(f"{file}: columns {named} could each be the label; keep one of these names")
    return found[0] if found else width - 1


def _taken(columns: list[str], label: int) -> str:
    """For messages: which column is the label, where no name says so."""
    if columns[label].lower() in LABEL_COLUMNS:
        return ""
    return f"; {columns[label]!r}, the last, is taken as the label, as none is called {' or '.join(LABEL_COLUMNS)}"


def _bad_cell(file: Path, line: int, row: list[str], columns: list[str], label: int) -> DataError:
    for i, cell in enumerate(row):
        text = cell.strip()
        if i != label and not (_is_number(text) and np.isfinite(float(text))):
            missing = text.lower() in MISSING
            what = "a missing value" if missing else f"{text!r}, which is no finite number"
            todo = "fill it or drop the row" if missing else "encode text as numbers first"
            return DataError(f"{file}: line {line}, {columns[i]!r} holds {what}; {todo}{_taken(columns, label)}")
    return DataError(f"{file}: line {line} cannot be read as numbers")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _numbered(y: NDArray[Any], file: Path, told: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Labels as 0..C-1 in sorted order, numbers by value and text by alphabet, and what they were called."""
    if y.dtype.kind == "S":
        y = np.char.decode(y, "utf-8")
    if y.dtype.kind == "U" and all(_is_number(text) for text in np.unique(y)):
        y = y.astype(np.float64)
    if y.dtype.kind == "f":
        if not np.isfinite(y).all():
            raise DataError(f"{file}: label {int(np.flatnonzero(~np.isfinite(y))[0])} (from 0) is not finite")
        if (y != np.round(y)).any():
            odd = y[y != np.round(y)][0]
            raise DataError(f"{file}: a label is {odd}; classes are whole numbers or text, not measurements{told}")
        y = y.astype(np.int64)
    if y.dtype.kind not in "iubU":
        raise DataError(f"{file}: labels are of dtype {y.dtype}; expected whole numbers or text")
    classes, labels = np.unique(y, return_inverse=True)
    if len(classes) < 2:
        raise DataError(f"{file}: {len(classes)} class in {len(y)} labels; there is nothing to tell apart{told}")
    return labels.astype(np.int64), tuple(str(c) for c in classes.tolist())

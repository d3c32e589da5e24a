"""Samples that are images, though they may lie flat."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

SMALLEST = 4  # pixels a side: 16 numbers or more may be an image, fewer are taken as features


def shape_of(x: NDArray[Any]) -> tuple[int, int, int] | None:
    """Channels, height and width of the samples ``x`` of shape (n, ...), or None where they are no images.

    ``(n, height, width)`` and ``(n, channels, height, width)`` say so; ``(n, m * m)`` are taken for square images of
    one channel if ``m >= 4``.
    """
    if x.ndim == 4:
        return int(x.shape[1]), int(x.shape[2]), int(x.shape[3])
    if x.ndim == 3:
        return 1, int(x.shape[1]), int(x.shape[2])
    side = round(float(np.sqrt(x.shape[1])))
    return (1, side, side) if x.ndim == 2 and side >= SMALLEST and side * side == x.shape[1] else None


def rotated(x: NDArray[Any], degrees: float) -> NDArray[Any]:
    """Images turned counter-clockwise about their middle, in the shape and dtype of ``x``.

    Quarter turns of square images move pixels and change none; other angles take the bilinear mean of the four nearest
    pixels, and 0 from outside of the image.
    """
    found = shape_of(x)
    if found is None:
        raise ValueError(f"samples of shape {x.shape[1:]} are no images")
    channels, height, width = found
    images = x.reshape(len(x), channels, height, width)
    quarters, rest = divmod(degrees % 360, 90)
    if rest == 0 and (height == width or quarters % 2 == 0):
        return np.ascontiguousarray(np.rot90(images, int(quarters), axes=(2, 3))).reshape(x.shape)
    angle = np.deg2rad(degrees)
    rows, columns = np.mgrid[:height, :width].astype(np.float64)
    rows, columns = rows - (height - 1) / 2, columns - (width - 1) / 2
    # Where each pixel of the result comes from: rows go down, so a turn to the left looks like one to the right.
    from_row = np.cos(angle) * rows + np.sin(angle) * columns + (height - 1) / 2
    from_column = np.cos(angle) * columns - np.sin(angle) * rows + (width - 1) / 2
    top, left = np.floor(from_row).astype(np.int64), np.floor(from_column).astype(np.int64)
    down, right = from_row - top, from_column - left
    result = np.zeros(images.shape)
    for row, column, share in (
        (top, left, (1 - down) * (1 - right)),
        (top, left + 1, (1 - down) * right),
        (top + 1, left, down * (1 - right)),
        (top + 1, left + 1, down * right),
    ):
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        pixels = images[:, :, row.clip(0, height - 1), column.clip(0, width - 1)]
        result += pixels * (share * inside)
    return result.reshape(x.shape).astype(x.dtype)

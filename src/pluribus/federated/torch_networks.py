"""Ready torch modules for images. Needs torch: import it where it is used."""

from __future__ import annotations

import torch
from torch import nn


class SmallCNN(nn.Module):  # type: ignore[misc]  # torch is not typed here
    """Two convolutions and a linear layer, for square grey images that come as rows of pixels.

    ``(n, side * side)`` or ``(n, side, side)`` to scores ``(n, n_classes)``: 5 x 5 convolution to ``channels``, relu,
    2 x 2 maxima, 3 x 3 convolution to twice as many, relu, 2 x 2 maxima, linear. With 8 channels and 28 x 28 pixels
    that are 9,226 parameters. (LeCun et al. 1998 is the ancestor.)
    """

    def __init__(self, side: int, n_classes: int, channels: int = 8) -> None:
        super().__init__()
        self.side = side
        self.first = nn.Conv2d(1, channels, 5, padding=2)
        self.second = nn.Conv2d(channels, 2 * channels, 3, padding=1)
        self.output = nn.Linear(2 * channels * (side // 4) ** 2, n_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of the images."""
        maps = x.reshape(len(x), 1, self.side, self.side)
        for layer in (self.first, self.second):
            maps = nn.functional.max_pool2d(nn.functional.relu(layer(maps)), 2)
        scores: torch.Tensor = self.output(maps.flatten(1))
        return scores

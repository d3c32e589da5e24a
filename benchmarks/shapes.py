"""Shapes of real models."""

from __future__ import annotations


def resnet50() -> dict[str, tuple[int, ...]]:
    """ResNet-50's 161 trainable arrays, 25,557,032 numbers: the architecture of He et al. 2016, table 1."""
    shapes: dict[str, tuple[int, ...]] = {"conv1.weight": (64, 3, 7, 7), "bn1.weight": (64,), "bn1.bias": (64,)}
    wide_in = 64
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), start=1):
        for block in range(blocks):
            at = f"layer{stage}.{block}"
            convolutions = ((width, wide_in, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1))
            for k, shape in enumerate(convolutions, start=1):
                shapes[f"{at}.conv{k}.weight"] = shape
                shapes[f"{at}.bn{k}.weight"] = shapes[f"{at}.bn{k}.bias"] = shape[:1]
            if block == 0:
                shapes[f"{at}.downsample.0.weight"] = (4 * width, wide_in, 1, 1)
                shapes[f"{at}.downsample.1.weight"] = shapes[f"{at}.downsample.1.bias"] = (4 * width,)
            wide_in = 4 * width
    shapes["fc.weight"], shapes["fc.bias"] = (1000, 2048), (1000,)
    return shapes

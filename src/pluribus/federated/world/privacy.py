"""Differential privacy where the update is made: it is clipped and blurred before it leaves the client.

There is no accounting here: what epsilon and delta a run amounts to depends on the participation and the number of
rounds, and is not computed yet.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pluribus.federated import options
from pluribus.federated.errors import SettingError
from pluribus.federated.models import Tree, real
from pluribus.federated.world.compression import finite, norm_of

FORMS = "none or dp:CLIP:NOISE, e.g. dp:1:0.5"


class Protected(NamedTuple):
    """The update that leaves, the norm that it had (infinite if it was not finite), and whether it was clipped.

    The norm and the flag tell about the client's data: they are for the client, or for a simulation.
    """

    update: Tree
    norm: float
    clipped: bool


@dataclass(frozen=True)
class Privacy:
    """``u min(1, clip / |u|) + noise clip N(0, I)``, with the norm over all protected tensors together.

    The noise is added at each client (local privacy), so a mean of n has ``noise clip / sqrt(n)`` left. An update that
    is not finite counts as zero: that it diverged would tell about the data. Counters, masks and tensors that are not
    protected leave as they are, and tell what they tell.

    Clipping as in Abadi et al. 2016 (DP-SGD), of updates as in McMahan et al. 2018 (DP-FedAvg).
    """

    clip: float
    noise: float

    def __post_init__(self) -> None:
        for name, least in (("clip", self.clip > 0), ("noise", self.noise >= 0)):
            if not (least and np.isfinite(getattr(self, name))):
                expected = "a number > 0" if name == "clip" else "a number >= 0"
                raise SettingError(f"dp: {name} is {getattr(self, name)!r}; expected {expected}")

    def __str__(self) -> str:
        return f"dp:{options.brief(self.clip)}:{options.brief(self.noise)}"

    def protect(self, update: Tree, rng: np.random.Generator, trained: Collection[str] | None = None) -> Protected:
        """The update as it leaves the client; the one given is not modified.

        Parameters
        ----------
        update
            Tensors by name.
        rng
            Where the noise comes from; tensors draw in the order of the update.
        trained
            Names of the tensors to protect; None is all real ones.
        """
        unknown = sorted(set(trained or ()) - set(update))
        if unknown:
            raise SettingError(f"dp protects {unknown[0]!r}, which the update does not hold")
        names = [name for name, value in update.items() if real(value) and (trained is None or name in trained)]
        chosen = {name: update[name] for name in names}
        norm = norm_of(list(chosen.values())) if finite(chosen) else np.inf
        shrink = min(1.0, self.clip / norm) if norm > 0 else 1.0
        sent = dict(update)
        for name, value in chosen.items():
            kept = value.astype(np.float64) * shrink if np.isfinite(norm) else np.zeros(value.shape)
            if self.noise:
                kept = kept + self.noise * self.clip * rng.standard_normal(value.shape)
            sent[name] = kept.astype(value.dtype)
        return Protected(sent, float(norm), bool(norm > self.clip))


def parse(text: str) -> Privacy | None:
    """The protection that a text names, ``dp:CLIP:NOISE``; ``none`` is no protection."""
    kind, *numbers = text.strip().split(":")
    if kind == "none" and not numbers:
        return None
    if kind != "dp" or len(numbers) != 2:
        raise SettingError(f"{text!r} is no protection; expected {FORMS}")
    clip = options.number(lambda x: x > 0, "a number > 0")(numbers[0], "dp's clip")
    return Privacy(clip, options.number(lambda x: x >= 0, "a number >= 0")(numbers[1], "dp's noise"))

"""The way from a client to the server as one text: protection first, then compression."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pluribus.federated.errors import SettingError
from pluribus.federated.models import Tree
from pluribus.federated.world import compression, privacy
from pluribus.federated.world.compression import Compressor, Sent, Whole
from pluribus.federated.world.privacy import Privacy

FORMS = "none, dp:1:0.5, topk:0.01, qsgd:16, sign or dp:1:0.5+topk:0.01"


@dataclass(frozen=True)
class Channel:
    """An update is protected and then compressed, so what travels is a function of the protected update alone.

    So the memory of error feedback holds parts of protected updates only.
    """

    privacy: Privacy | None = None
    compressor: Compressor = field(default=Whole())

    def __str__(self) -> str:
        if self.privacy is None:
            return str(self.compressor)
        return str(self.privacy) + ("" if isinstance(self.compressor, Whole) else f"+{self.compressor}")

    @property
    def plain(self) -> bool:
        """Whether updates travel as they are."""
        return self.privacy is None and isinstance(self.compressor, Whole)

    def send(self, update: Tree, memory: Mapping[str, Any], rng: np.random.Generator) -> Sent:
        """The update that arrives, its bytes, and the client's memory; see `compression.Compressor`."""
        if self.privacy is not None:
            update = self.privacy.protect(update, rng).update
        return self.compressor.send(update, memory, rng)


def parse(text: str) -> Channel:
    """The channel that a text names: ``none``, ``dp:CLIP:NOISE``, a compression, or ``dp:...+COMPRESSION``."""
    first, *rest = (part.strip() for part in re.split(r"\+(?!\d)", text, maxsplit=1))  # the + of 1e+38 parts nothing
    if not first.startswith("dp"):
        if rest:
            raise SettingError(f"{text!r}: protection stands before compression; expected e.g. {FORMS}")
        return Channel(None, compression.parse(first))
    return Channel(privacy.parse(first), compression.parse(rest[0]) if rest else Whole())

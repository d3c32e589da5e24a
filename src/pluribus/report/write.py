"""Pages onto disk, whole or not at all."""

from __future__ import annotations

from pluribus.core.files import write_text

__all__ = ["write_text"]

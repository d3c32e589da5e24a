"""What can be wrong with a simulation's settings or its data."""

from __future__ import annotations

from pluribus.core.errors import PluribusError


class SettingError(PluribusError, ValueError):
    """An option of local training, a partition, a participation or an attack that makes no sense."""


class DataError(PluribusError, ValueError):
    """Samples and labels that cannot be trained on, or too few of them for what was asked."""

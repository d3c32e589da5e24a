"""Rules for models that were trained from one start."""

from pluribus.rules.models.karcher import Karcher
from pluribus.rules.models.model_stock import ModelStock

__all__ = ["Karcher", "ModelStock"]

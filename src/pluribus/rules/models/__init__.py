"""Rules for models that were trained from one start."""

__all__: list[str] = []

"""Rules made of rules: mixtures, groups of tensors, splits of coordinates."""

__all__: list[str] = []

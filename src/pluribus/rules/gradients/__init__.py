"""Rules for the conflicting gradients of several objectives."""

__all__: list[str] = []

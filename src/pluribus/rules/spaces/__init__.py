"""Rules in spaces that are not flat: spheres, simplices, positive definite matrices, distributions, rankings."""

__all__: list[str] = []

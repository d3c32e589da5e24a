"""A Flower app: handwritten digits, a small network in numpy, any rule of pluribus."""

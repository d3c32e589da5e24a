"""Rules on the arrays of ResNet-50, beside numpy, flwr, byzfl and TorchJD, and beside the machine's read limit.

    python -m benchmarks.rules [--n 10 50] [--share 1 32] [--json FILE]
    python -m benchmarks.rules --python VENV/bin/python --python OTHER/bin/python   # the peers' own environments

Prints, for each rule: CPU seconds, wall seconds, peak memory above the inputs in models, and the CPU seconds over the
time in which this machine reads all inputs once, measured in the same run; for every rule on the Gram matrix its time
over that of the Gram matrix and the mean; for every peer how much faster ours is and how far the results differ. Peers
are measured on the same numbers, in a process of their own where they live in another environment; none of their code
is here.
"""

"""The world that clients live in: who is there and how fast, when the server stops waiting, and what travelling costs.

Time is simulated: seconds go by on a clock that nobody waits for, so "time to 90 %" is a number that the same seed
gives again.
"""

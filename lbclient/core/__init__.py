"""Decisions without I/O: no clock, event loop, network, file or global randomness.

Time is an argument and chance a `random.Random`, so the simulator runs the same code.
Start with `model`, then `load` and `pool`.
"""

"""Decisions without I/O: no clock, event loop, network, file or global randomness.

Time is an argument and chance a `random.Random`, so the simulator runs the same code.
Start with `model`, the values that flow, then `load`, what is known of one backend, and
`backends.pool`, who is connected. Here is what all folders share; they are

- of the client: `backends`, `routing`, `outliers`, `retries`, `throttles`;
- of the server: `overload`, `quotas`, `report`;
- of both: `counting`, `statistics`.
"""

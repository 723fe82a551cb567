"""Which backends a client has, and in what state each is.

Start with `pool`, which decides who is connected and ready, then `lifecycle`,
whose docstring is the table of one backend's states: what changes them, and to which.
"""

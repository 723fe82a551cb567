"""Which backends a client has, and in what state each is.

Start with `pool`, which decides who is connected and ready, then `lifecycle`, the
states of one backend; what changes them has modules of its own.
"""

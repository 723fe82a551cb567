"""The calls that a channel returns, of gRPC's four arities, and their attempts.

Start with `attempts`: whether, when and where the next attempt goes. `direct` is the
call of the hot path, `wrapped` one that may wait, `hedged` one with attempts at once.
"""

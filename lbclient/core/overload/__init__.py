"""What a server admits: overload signals, concurrency and queue limits.

Start with `admission`, then `overload_signals`, which feeds it.
"""

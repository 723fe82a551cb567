"""The backends of a channel: found, connected, watched, woken and let go.

Start with `backends`, which has them all; `backend` is one of them. What its states are
and what changes them is the table of `core.backends.lifecycle`. Endpoints come from
`discovery`; `connections` opens and closes what the pool decides; `idleness` ends and
wakes them, and lets the channel `rest`; `connectivity` tells the channel's state.
"""

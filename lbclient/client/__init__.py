"""The client's side: the channel, its calls, its backends and their health.

Start with `channel`, what users hold, then `balancer`, which wires the parts, picks and
settles. Endpoints come from `discovery`; `connections` opens and closes what the pool
decides; `idleness` ends and wakes them; `connectivity` tells the channel's state;
`pending` has the calls that wait.
"""

"""The client's side: the channel, its calls, its backends and their health.

Start with `channel`, what users hold, then `balancer`, which wires the parts.
"""

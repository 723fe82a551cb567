"""Commands for operating a fleet: inspect, probe, diagnose, forward."""

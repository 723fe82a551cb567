"""What docs/simulator.md claims, run again; see `__main__`."""

"""Commands for who runs a fleet."""

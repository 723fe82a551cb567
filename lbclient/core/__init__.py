"""What decides: no clock, no loop, no wire, no chance of its own."""
